"""Whole engines side by side: ours, transformers, any peer, each in processes of its own.

engine_command -> workloads            the requests: A, B, C16, C64, or a file
               -> contenders           what was asked for on the command line -> an Engine each
                  |- piped (protocol)  a driver on two pipes: ours, transformers (drivers/), --peer
                  `- served            an OpenAI-compatible server: ours over HTTP, --against
                     processes         both: starting, ending, memory and CPU time of a process and its children
               -> rotation             rounds: one engine works at a time, in an order that turns -> Measured
               -> ceilings             what the machine can do at most, measured between the engines
               -> figures, shares      figures of a run; ratios by round; GB/s and GOP/s as shares of the ceilings
               -> tables, plots        the terminal and the page
               -> profile              --profile: where the time of a step of ours goes
"""

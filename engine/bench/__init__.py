"""Engine benchmarks: the engine against others (``engines``, in processes of their own), and the same work under
different settings of the engine, in one process, without HTTP, which is what the rest of this folder is about.

__main__ -> command -> workload (traces)    the requests: lengths, token ids, arrival times
                    -> policies             what is compared with what
                    -> drive                one run: an EngineCore stepped by a clock -> RunRecord
                    -> metrics -> compare   figures of each policy, ratios with their spread over rounds
                    -> fit                  how many requests of a trace fit a pool, without a model
                    -> show, report          tables on the terminal, JSON; page (charts): HTML; samples: parquet
"""

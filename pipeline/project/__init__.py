"""The newcomer's path: a project of one's own, and whether this machine is fit for a trial.

init         `seatrial init`: params, graph, regression set, workflow, README, from `template/`
traffic      a load profile with shorter prompts, where the model's context is too short for the usual one
code         digests of the installed code by stage, which such a project's graph depends on in place of source folders
doctor       `seatrial doctor`: what is missing, what will be slow
anchors      which section of the README explains an error
commands     the two commands, and completion
"""

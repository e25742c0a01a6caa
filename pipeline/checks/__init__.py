"""What the workflows of `.github/` run, each of it a command that runs here as well.

python -m pipeline.checks.pull_request   trial, A/B of base and head, comment, exit code
python -m pipeline.checks.control        a planted fault must come out red, a clean run green
python -m pipeline.checks.comment        the comment on a pull request, in place (needs Python and `gh` alone)
python -m pipeline.checks.soak           a soak that drifted, stepped or leaked must come out red
python -m pipeline.checks.rotation       whether production requests are due to be rotated
python -m pipeline.checks.release_settings   params.yaml as a release is judged
"""

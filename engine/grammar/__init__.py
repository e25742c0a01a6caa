"""Outputs that must match a JSON schema, a regular expression or one of some texts: which tokens may come next.

llguidance compiles the grammar and walks the vocabulary. What may come next is a function of the output tokens alone:
each request has a matcher of its own, begun from the same compiled state, so neighbours, chunks, forks and preemption
change nothing. It is loaded with the first request that needs it.

Nothing that a request brings may stop the others. Sources are limited in bytes and depth, the library in the size of
its tables and the work of one step (limits that count work, not time, so that an output does not depend on the
machine's mood). Compiling has no such limit that always holds, so the server compiles first, in a process that is ended
when it takes too long (``check``), and the core compiles what has passed in a thread beside its steps.

sources    what a request may bring: kinds, limits, and their translation into the library's form
compiler   a source and a tokenizer -> a matcher, which says what may come next
check      the process in which the server tries a grammar first
"""

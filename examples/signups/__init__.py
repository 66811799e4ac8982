"""A user's application: sign-ups, each with a job for its welcome mail.

`app.py` and `tasks.py` are all that an application has to write. The other files are the demo: it
runs the two on this machine, through a deployed stack, with everything that goes wrong in earnest.
"""

"""The program: command line, simulation, evaluation and reports. Nothing else imports it."""

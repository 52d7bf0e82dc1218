"""What holds for all tests: no test fails because the machine is busy."""

import hypothesis

hypothesis.settings.register_profile("muster", deadline=None)
hypothesis.settings.load_profile("muster")

# SPDX-License-Identifier: Apache-2.0
"""`make bench` fails where a benchmark is beyond its limit or did not run, and says which."""

import contextlib
import io
import json
import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import run


class Run(unittest.TestCase):
    def run_main(self, *names: str) -> tuple[int, str]:
        errors = io.StringIO()
        with (
            mock.patch.object(sys, "argv", ["run.py", *names]),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(errors),
        ):
            return run.main(), errors.getvalue()

    def test_what_is_not_built_is_named_and_fails(self) -> None:
        built = mock.Mock()
        table = {"gone": (mock.Mock(), pathlib.Path("/nowhere")), "built": (built, run.ROOT)}
        with mock.patch.object(run, "BENCHMARKS", table):
            code, errors = self.run_main()
        self.assertEqual(code, 1)
        self.assertIn("bench: gone: skipped, /nowhere is missing", errors)
        self.assertIn("beyond their limits, or not run: gone\n", errors)
        built.assert_called_once()

    def test_a_sampler_above_its_limit_fails(self) -> None:
        for share, expected in ((0.1, 0), (0.3, 1)):
            ours = {
                "SampleHot": {"real_time": 50.0},
                "SamplePaced/500/iterations:20": {"cpu_us_per_sample": 60.0, "percent_of_a_core": share},
            }
            peer = json.dumps({"hot_us": 1.0, "paced_us": 1.0, "percent_of_a_core": 0.4})
            with (
                mock.patch.object(run, "google_benchmark", return_value=ours),
                mock.patch.object(run, "output_of", return_value=peer),
                mock.patch.object(run, "BENCHMARKS", {"sampler": (run.sampler, run.ROOT)}),
            ):
                self.assertEqual(self.run_main()[0], expected)

    def test_an_unknown_name_is_a_usage_error(self) -> None:
        self.assertEqual(self.run_main("nonesuch")[0], 2)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Runs the tests of meson build folders and counts every TAP line of every program.

    tests/run_tests.py [--need-gpu] [--jobs N] [--only TEXT] LABEL=FOLDER ...

Counting is strict: a program that is missing, crashes, times out, prints no plan or another number
of results than planned, or runs nothing without saying why, is a failure. Exit status 77 skips a program.
Ends with the skips, the failures, and "N passed, N failed, N skipped".
"""
import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import time

POINT = re.compile(r"(not )?ok\b\s*(\d*)\s*(?:-\s*)?(.*?)\s*(?:#\s*(SKIP|TODO)\b\s*(.*))?$", re.I)


class Result:
    def __init__(self, name):
        self.name, self.passed, self.failed, self.skipped, self.output = name, 0, [], [], ""


def count(result, text, code):
    """Adds what one program printed."""
    plan, seen = None, 0
    for line in text.splitlines():
        planned = re.match(r"1\.\.(\d+)\s*(?:#\s*SKIP\S*\s*(.*))?$", line, re.I)
        if planned and plan is not None:
            result.failed.append("a second plan")
        elif planned:
            plan = int(planned[1])
            if plan == 0 and planned[2]:
                result.skipped.append(planned[2])
                seen = -1
        elif line.startswith("Bail out!"):
            result.failed.append(line)
        elif point := POINT.match(line):
            seen += 1
            if point[2] and int(point[2]) != seen:
                result.failed.append(f"result {seen} has number {point[2]}")
            if point[4] and not point[1]:
                result.skipped.append(f"{point[3]}: {point[5] or 'no reason given'}")
            elif point[1]:
                result.failed.append(point[3] or f"result {seen}")
            else:
                result.passed += 1
    if code == 77 and result.skipped:
        return
    if code == 77:
        reason = [line.lstrip("# ") for line in text.splitlines() if line.strip()][-1:]
        result.skipped.append(reason[0] if reason else "exit status 77, no reason given")
        return
    if plan is None:
        result.failed.append("no plan")
    elif seen >= 0 and (plan != seen or plan == 0):
        result.failed.append(f"{plan} planned, {seen} run")
    if code < 0:
        result.failed.append(f"died of {signal.Signals(-code).name}")
    elif code != 0 and not result.failed:
        result.failed.append(f"exit status {code}")


def run(label, test, need_gpu):
    suite = test["suite"][0].split(":")[-1]
    result = Result(f"{label}/{suite}/{test['name']}")
    begin = time.monotonic()
    if not os.path.exists(test["cmd"][0]):
        result.failed.append("did not build")
    else:
        process = subprocess.Popen(test["cmd"], cwd=test["workdir"], env={**os.environ, **test["env"]}, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   errors="replace", start_new_session=True)
        try:
            result.output, _ = process.communicate(timeout=test["timeout"])
            count(result, result.output, process.returncode)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            result.output, _ = process.communicate()
            result.failed.append(f"no end after {test['timeout']} s")
    if need_gpu and suite == "gpu" and result.skipped:
        result.failed += [f"{reason} (a device was asked for)" for reason in result.skipped]
        result.skipped = []
    result.seconds = time.monotonic() - begin
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--need-gpu", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="only tests whose label/suite/name holds this")
    parser.add_argument("folders", nargs="+", metavar="LABEL=FOLDER")
    options = parser.parse_args()

    tests = []
    for label, folder in (argument.split("=", 1) for argument in options.folders):
        listing = subprocess.run(["meson", "introspect", "--tests", folder], check=True, capture_output=True, text=True)
        tests += [(label, test) for test in json.loads(listing.stdout)
                  if options.only in f"{label}/{test['suite'][0].split(':')[-1]}/{test['name']}"]
    results = []
    # A GPU, or a test that says so, is not shared.
    alone = [pair for pair in tests if not pair[1]["is_parallel"]]
    together = sorted((pair for pair in tests if pair[1]["is_parallel"]), key=lambda pair: -pair[1]["priority"])  # long ones first
    for group, jobs in ((together, options.jobs), (alone, 1)):
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for done in concurrent.futures.as_completed(pool.submit(run, *pair, options.need_gpu) for pair in group):
                result = done.result()
                results.append(result)
                for line in result.output.splitlines() if result.failed else ():
                    print(f"    {line}")
                print(f"{'FAIL' if result.failed else 'ok  '} {result.name}: {result.passed} passed, "
                      f"{len(result.failed)} failed, {len(result.skipped)} skipped, {result.seconds:.1f} s", flush=True)
    results.sort(key=lambda result: result.name)
    for kind in ("skipped", "failed"):
        for result in results:
            for what in getattr(result, kind):
                print(f"{kind}: {result.name}: {what}")
    passed = sum(result.passed for result in results)
    failed = sum(len(result.failed) for result in results)
    print(f"{passed} passed, {failed} failed, {sum(len(result.skipped) for result in results)} skipped")
    return failed != 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())

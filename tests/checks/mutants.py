#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks one guard of an invariant at a time and checks that the tests notice.

For each mutant below: the tree is copied, one guard is taken out of the copy, the named tests are built and run there, and they must fail; which of them
did is printed. Before, they must pass in the copy as it is.
A mutant that survives, or whose text is no longer found in the source, is an error. `make mutants` runs it; --only I1 picks some.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASE_LIMIT_S = 20


class Mutant(NamedTuple):
    invariant: str
    what: str  # the guard that is removed
    file: str
    old: str
    new: str
    target: str  # test executable
    cases: str  # gtest filter: what must fail


MUTANTS = [
    Mutant("I1", "a slot is reused although a session still holds it", "server/feed/membership.cc",
           "  if (held) return std::nullopt;\n", "  if (held && slot != 0) return std::nullopt;\n", "feed_test", "*NeverWritesASlotThatIsStillHeld"),
    Mutant("I1", "broadcast: the first release is enough", "server/feed/membership.cc",
           "for (Participant* member : members_) held |= ReadLease(*member, slot);",
           "if (!members_.empty()) held = ReadLease(*members_.front(), slot);", "feed_test", "*FeedBroadcastTest.GivesEveryBatch*"),
    Mutant("I1", "what an evicted session holds is filled anew", "server/feed/membership.cc",
           "if (lease.sequence < taken) {", "if (lease.sequence < taken && slot == slot_count_) {", "feed_test", "*MemberKeepsWhatItTook*"),
    Mutant("I1", "a dead client's memory is freed although its work may go on", "server/memory/gpu/device_memory_quarantine.cc",
           "return std::none_of(entry.clients", "return true || std::none_of(entry.clients", "gpu_test", "*StaysWhileAForkedChildHasTheGpu"),
    Mutant("I2", "a batch is done before its last chunk is", "server/loading/worker_pool.cc",
           "std::memory_order_acq_rel) == samples;", "std::memory_order_acq_rel) == task.samples_;", "loading_test",
           "*RunsEverySampleOnceAndThenDoneOnce"),
    Mutant("I2", "the count is raised before the descriptor is written", "server/memory/control_pages.cc",
           "  entry = descriptor;\n", "  entry.flags = descriptor.flags;\n", "memory_test", "*PublishedDescriptorsArriveInOrder"),
    Mutant("I3", "batches are published newest first", "server/feed/batch_queue.h",
           "unpublished_.push_back(slot);", "unpublished_.push_front(slot);", "feed_test", "*PublishesWholeBatchesOnceAndInOrder"),
    Mutant("I3", "a session that came back gets batches it has had", "server/feed/membership.cc",
           "member->start && here < *member->start", "member->start && here < Sampler::Start{}", "feed_test",
           "*FeedBroadcastTest.MembersThatComeBack*"),
    Mutant("I3", "a broadcast leaves out what somebody may still come for", "server/feed/batch_cycle.cc",
           "if (first > next && !batches_.empty()) return false;", "if (first > next && stopping_) return false;", "feed_test",
           "*FeedBroadcastTest.SkipsNothing*"),
    Mutant("I4", "the order depends on the slot", "server/loading/native_batch_producer.cc",
           "key{ids[i], ", "key{ids[(i + (reinterpret_cast<uintptr_t>(places[0].data()) >> 9)) % request.plan().samples], ",
           "feed_test", "*SameBytesForAnyWorkerCount*"),
    Mutant("I4", "the global batch depends on the world size", "server/order/sampler.cc",
           "rank_ * plan.samples;", "rank_ * (plan.samples - 1);", "order_test", "*GlobalBatchIsTheSameForEveryWorldSize"),
    Mutant("I5", "the pool lends more than it has", "server/memory/memory_budget.cc",
           "return bytes > capacity_bytes_ - used_bytes_ ?", "return bytes > capacity_bytes_ ?", "memory_test", "*LeasesAreChargedAndComeBack"),
    Mutant("I6", "any later generation releases a slot", "server/feed/membership.cc",
           "if (word == lease.generation) {", "if (word >= lease.generation) {", "feed_test", "*WrongReleaseWordsAreIgnored*"),
    Mutant("I6", "the client can write the publish page", "server/memory/control_pages.cc",
           "  RETURN_IF_ERROR(SealAgainstNewWriters(publish_fd.get()));\n", "", "memory_test", "*ClientCannotWriteThePublishPage"),
    Mutant("I6", "a feed that comes late is served before the others until it has caught up", "server/loading/worker_pool.cc",
           "< queue.level_ns)", "< queue.level_ns && queue.tasks.size() > 9)", "loading_test", "*FeedThatComesLateDoesNotCatchUp"),
    Mutant("I6", "an arena's copies all come before those of the next", "server/memory/gpu/copy_queue.cc",
           "next_lane_ = (next_lane_ + i + 1) % lanes_.size();", "next_lane_ = 0;", "gpu_test", "*LanesTakeTurns"),
    Mutant("I7", "a session that leaves keeps its slots", "server/feed/membership.cc",
           "      lease.generation = 0;\n      GiveBack(slot);\n", "", "feed_test", "*DetachAtAnyPoint*"),
    Mutant("I7", "a lease does not come home", "server/memory/memory_budget.cc",
           "used_bytes_ -= bytes;", "static_cast<void>(bytes);", "memory_test", "*LeasesAreChargedAndComeBack"),
]


class Outcome(NamedTuple):
    failed: list[str]  # the tests that noticed, in gtest's names; a crash or a hang counts for the test it came in
    fault: str  # why there is no answer, else ""


def run_tests(build: pathlib.Path, target: str, cases: str) -> Outcome:
    made = subprocess.run(["cmake", "--build", str(build), "--target", target, "-j", str(len(os.sched_getaffinity(0)))], capture_output=True, text=True)
    if made.returncode != 0:
        return Outcome([], "it does not build:\n" + made.stdout[-2000:])
    try:
        test = subprocess.run([str(build / "tests" / target), f"--gtest_filter={cases}"], capture_output=True, text=True, timeout=300,
                              env={"PINFEED_TEST_TIMEOUT_S": str(CASE_LIMIT_S), "PATH": "/usr/bin:/bin"})
    except subprocess.TimeoutExpired:
        return Outcome([], "the tests did not end within 300 s")
    begun = re.findall(r"^\[ RUN      \] (\S+)", test.stdout, re.MULTILINE)
    failed = re.findall(r"^\[  FAILED  \] (\S+?),? .*\(\d+ ms\)$", test.stdout, re.MULTILINE)
    if not begun:
        return Outcome([], f"no test of {target} is named {cases}")
    if test.returncode != 0 and not failed:
        failed = [f"{begun[-1]}, which {'hung' if 'watchdog: ' in test.stderr else f'ended with {test.returncode}'}"]
    return Outcome(failed, "")


def misplaced(mutant: Mutant, tree: pathlib.Path) -> str:
    """Why the guard cannot be taken out, else ""."""
    count = (tree / mutant.file).read_text().count(mutant.old)
    return "" if count == 1 else f"the guard stands {count} times in {mutant.file}, expected once"


def run(mutant: Mutant, tree: pathlib.Path, build: pathlib.Path) -> Outcome:
    path = tree / mutant.file
    original = path.read_text()
    if fault := misplaced(mutant, tree):
        return Outcome([], fault)
    try:
        path.write_text(original.replace(mutant.old, mutant.new))
        outcome = run_tests(build, mutant.target, mutant.cases)
        return outcome if outcome.failed or outcome.fault else Outcome([], f"{mutant.target} {mutant.cases} pass all the same")
    finally:
        path.write_text(original)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="an invariant, such as I3")
    parser.add_argument("--check", action="store_true", help="only look whether each guard is still there")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "mutants")
    arguments = parser.parse_args()
    if arguments.check:
        faults = [f"{mutant.invariant}: {mutant.what}: {fault}" for mutant in MUTANTS if (fault := misplaced(mutant, ROOT))]
        print("\n".join(faults) or f"{len(MUTANTS)} guards are there")
        return 1 if faults else 0
    tree = arguments.build / "tree"
    build = arguments.build / "build"
    files = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    shutil.rmtree(tree, ignore_errors=True)
    for name in filter(None, files):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)  # with today's date, lest objects of the last mutant seem newer
    subprocess.run(["cmake", "--preset", "release", "-S", str(tree), "-B", str(build)], cwd=tree, check=True, capture_output=True)
    chosen = [m for m in MUTANTS if arguments.only in (None, m.invariant)]
    for target, cases in sorted({(m.target, m.cases) for m in chosen}):  # else a broken test would notice everything
        whole = run_tests(build, target, cases)
        if whole.failed or whole.fault:
            print(f"without a mutant, {target} {cases}: {whole.fault or 'failed: ' + ', '.join(whole.failed)}")
            return 1
    survivors = 0
    for mutant in chosen:
        outcome = run(mutant, tree, build)
        survivors += not outcome.failed
        print(f"{mutant.invariant}  {'noticed ' if outcome.failed else 'SURVIVED'}  {mutant.what}\n    {', '.join(outcome.failed) or outcome.fault}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

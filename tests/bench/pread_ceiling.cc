// SPDX-License-Identifier: Apache-2.0
// The ceiling of array loading. In: a file of samples of one size. Out: how many of them, picked at random,
// `threads` threads pread a second into memory like a feed's arena: a sealed memfd, mapped and faulted in. No
// batches, no order, no other process.
//
//   pread_ceiling FILE OFFSET SAMPLE_BYTES SAMPLES PLACES SECONDS THREADS
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <random>

#include "common/base/status.h"
#include "common/os/memfd.h"
#include "tests/bench/count_for.h"
#include "tests/bench/sample_file.h"

namespace pinfeed {
namespace {

struct Job : SampleFile {
  uint64_t places = 0;  // samples that the memory holds
  double seconds = 0;
  unsigned threads = 0;
};

Status Run(const Job& job) {
  const UniqueFd file(open(job.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoStatus("open " + job.path, errno);
  const uint64_t bytes = job.places * job.sample_bytes;
  ASSIGN_OR_RETURN(const UniqueFd memory, CreateMemfd("pread_ceiling", bytes));
  ASSIGN_OR_RETURN(const Mapping mapping, Mapping::Map(memory.get(), bytes, Access::kReadWrite, true));

  std::atomic<uint64_t> next_place = 0;
  const auto work = [&](unsigned thread, std::atomic<uint64_t>& done, const std::atomic<bool>& stop) {
    std::mt19937_64 random(thread);
    std::uniform_int_distribution<uint64_t> pick(0, job.samples - 1);
    while (!stop.load(std::memory_order_relaxed)) {
      const uint64_t place = next_place.fetch_add(1, std::memory_order_relaxed) % job.places;
      RETURN_IF_ERROR(ReadSample(file.get(), job, pick(random), mapping.data() + place * job.sample_bytes));
      done.fetch_add(1, std::memory_order_relaxed);
    }
    return OkStatus();
  };
  return CountFor(job.seconds, job.threads, work);
}

}  // namespace
}  // namespace pinfeed

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fputs("usage: pread_ceiling FILE OFFSET SAMPLE_BYTES SAMPLES PLACES SECONDS THREADS\n", stderr);
    return 2;
  }
  const pinfeed::Status status =
      pinfeed::Run({{argv[1], std::stoull(argv[2]), std::stoull(argv[3]), std::stoull(argv[4])},
                    std::stoull(argv[5]),
                    std::stod(argv[6]),
                    static_cast<unsigned>(std::stoul(argv[7]))});
  if (status.ok()) return 0;
  std::fprintf(stderr, "pread_ceiling: %s\n", status.ToString().c_str());
  return 1;
}

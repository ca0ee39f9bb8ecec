// SPDX-License-Identifier: Apache-2.0
// The part of `pinfeed doctor` that needs no GPU: kernel features, limits, the daemon.
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/cli/command.h"
#include "client/cli/doctor.h"
#include "client/cli/text.h"
#include "common/base/byte_size.h"
#include "common/base/unique_handle.h"
#include "common/os/host_limits.h"
#include "common/os/memfd.h"
#include "pinfeed/pinfeed.hpp"

namespace pinfeed {
namespace {

constexpr uint64_t kFewDescriptors = 1024;

std::string Amount(rlim_t limit, bool bytes) {
  if (limit == RLIM_INFINITY) return "unlimited";
  return bytes ? ByteSize(limit) : Count(limit);
}

// Checks the system calls of the daemon and its clients that old kernels and strict containers lack.
void ExamineKernel(DoctorReport& report) {
  utsname names{};
  ::uname(&names);
  report.host["kernel"] = names.release;
  const auto call = [&](const char* what, const char* why, bool works, int error) {
    if (works) return true;
    report.Broken("kernel",
                  std::string(what) + " fails (" + std::strerror(error) + ") on Linux " + names.release +
                      ": " + why +
                      "; a newer kernel, or a container whose seccomp profile allows it, is needed");
    return false;
  };
  Status shared = OkStatus();
  if (auto memory = CreateMemfd("pinfeed-doctor", 4096); !memory.ok()) {
    shared = memory.status();
  } else {
    shared = SealAgainstNewWriters(memory->get());
  }
  bool works = call("memfd_create with seals", "the daemon shares batches with it", shared.ok(),
                    shared.native_error());
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  works &=
      call("pidfd_open", "the daemon detects with it that a trainer ended", static_cast<bool>(self), errno);
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH;
  const UniqueFd root(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, ".", &how, sizeof how)));
  works &= call("openat2", "the daemon confines clients to its allowed roots with it",
                static_cast<bool>(root), errno);
  if (works) report.Fine("kernel", std::string("Linux ") + names.release + ": memfd seals, pidfd, openat2");
}

void ExamineMemory(DoctorReport& report) {
  const Result<HostMemory> memory = ReadHostMemory();
  if (!memory.ok()) return report.Broken("memory", memory.status().message());
  report.host["memory_limit_bytes"] = memory->limit_bytes;
  report.host["memory_available_bytes"] = memory->available_bytes;
  report.host["memory_limited_by"] = memory->limited_by;
  const uint32_t cpus = UsableCpus(AffinityCpus());
  report.host["cpus"] = cpus;
  report.Fine("memory", ByteSize(memory->available_bytes) + " available of " + ByteSize(memory->limit_bytes) +
                            " (" + memory->limited_by + "); /dev/shm is not used");
  report.Fine("processors", Counted(cpus, "thread") + " for workers");
}

void ExamineLimits(DoctorReport& report) {
  rlimit memlock{};
  rlimit nofile{};
  ::getrlimit(RLIMIT_MEMLOCK, &memlock);
  ::getrlimit(RLIMIT_NOFILE, &nofile);
  const auto number = [](rlim_t limit) -> Json {
    return limit == RLIM_INFINITY ? Json(nullptr) : Json(static_cast<uint64_t>(limit));
  };
  report.host["memlock_bytes"] = number(memlock.rlim_cur);
  report.host["nofile"] = number(nofile.rlim_cur);
  report.host["nofile_hard"] = number(nofile.rlim_max);
  report.Fine("memlock", Amount(memlock.rlim_cur, true) +
                             "; NVIDIA's driver pins memory without counting it against this");
  const std::string files = Amount(nofile.rlim_cur, false) + ", at most " + Amount(nofile.rlim_max, false) +
                            " (the daemon raises its limit to that)";
  if (nofile.rlim_max < kFewDescriptors) {
    report.Note("open files", files + "; a session takes about 8 of the daemon's: raise LimitNOFILE");
  } else {
    report.Fine("open files", files);
  }
}

}  // namespace

void ExamineHost(DoctorReport& report) {
  report.host = Json::object();
  ExamineKernel(report);
  ExamineMemory(report);
  ExamineLimits(report);
}

void ExamineDaemon(const std::string& address, DoctorReport& report) {
  try {
    report.daemon = Json::parse(StatusJson(address));
  } catch (const Error& error) {
    if (error.code() != PF_UNAVAILABLE) return report.Broken("daemon", Printable(error.what()));
    std::string so = "none can be reached, so pinfeed.open (Python) starts a private one: ";
    if (!address.empty()) {
      so = "none is there, so pinfeed.open (Python) with this address fails: ";
    } else if (EnvironmentNamesDaemon()) {
      so = "none is there, so pinfeed.open (Python) fails until PINFEED_ADDRESS is unset: ";
    }
    return report.Note("daemon", so + Printable(error.what()));
  }
  const std::string state = TextField(report.daemon, "state");
  const std::string text = Printable("pinfeedd " + TextField(report.daemon, "version") + " is " + state +
                                     ", backend " + TextField(report.daemon, "backend") + ", " +
                                     Counted(UintField(report.daemon, "workers"), "worker") + ", " +
                                     ByteSize(UintField(report.daemon, "pool_used_bytes")) + " of " +
                                     ByteSize(UintField(report.daemon, "pool_capacity_bytes")) + " in use");
  if (state == "ready") {
    report.Fine("daemon", text);
  } else {
    report.Broken("daemon", text + ": it takes no new feeds");
  }
}

}  // namespace pinfeed

// SPDX-License-Identifier: Apache-2.0
#include "client/cli/doctor_probe.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "client/cli/doctor.h"
#include "common/base/random.h"
#include "common/base/unique_handle.h"
#include "common/cuda/device_memory.h"
#include "common/spec/names.h"

extern char** environ;

namespace pinfeed {
namespace {

constexpr int kProbeFd = 3;             // number in the other process
constexpr unsigned kProbeSeconds = 30;  // creating a context takes about one
constexpr size_t kReasonBytes = 4096;

// Reads the process's output until it ends.
std::string ReadAll(int fd) {
  std::string said;
  std::array<char, 512> piece{};
  for (;;) {
    const ssize_t bytes = ::read(fd, piece.data(), piece.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    if (said.size() < kReasonBytes) said.append(piece.data(), static_cast<size_t>(bytes));
  }
  while (!said.empty() && said.back() == '\n') said.pop_back();
  return said;
}

// Runs this program as the other process, with `fd` as its kProbeFd. Its output comes through a pipe.
Status RunProbe(std::vector<std::string> words, int fd) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoStatus("create a pipe for a probe", errno);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  // dup2 from a number to itself would keep close-on-exec, so both descriptors are first copied to other
  // numbers.
  const UniqueFd passed(::fcntl(fd, F_DUPFD_CLOEXEC, kProbeFd + 1));
  UniqueFd said(::fcntl(writer.get(), F_DUPFD_CLOEXEC, kProbeFd + 1));
  if (!passed || !said) return ErrnoStatus("copy a descriptor for a probe", errno);
  writer.reset();
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, said.get(), STDERR_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, passed.get(), kProbeFd);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus("start another process for a probe", error);
  said.reset();
  const std::string reason = ReadAll(reader.get());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return OkStatus();
  if (WIFSIGNALED(status)) {
    return Internal("the other process ended by signal " + std::to_string(WTERMSIG(status)) +
                    (reason.empty() ? "" : ": " + reason));
  }
  return Internal("the other process: " + (reason.empty() ? "status " + std::to_string(status) : reason));
}

Result<std::shared_ptr<const CudaDevice>> OpenByUuid(const std::string& uuid) {
  ASSIGN_OR_RETURN(const int count, CudaDevice::Count());
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    ASSIGN_OR_RETURN(const std::string found, CudaDevice::UuidOf(ordinal));
    if (found == uuid) return CudaDevice::Open(ordinal);
  }
  return NotFound("no GPU " + uuid + " among the " + std::to_string(count) + " that this process sees");
}

// A handle is passed through a pipe, which buffers it until it is read.
Result<UniqueFd> SendHandle(const IpcHandle& handle) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoStatus("create a pipe for a handle", errno);
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  if (::write(writer.get(), handle.data(), handle.size()) != static_cast<ssize_t>(handle.size()))
    return ErrnoStatus("write a handle to a pipe", errno);
  return reader;
}

Result<DeviceMemory> Map(const std::string& backend, const std::shared_ptr<const CudaDevice>& device, int fd,
                         uint64_t bytes) {
  if (backend == BackendName(Backend::kVmmFd)) return DeviceMemory::Import(device, fd, bytes, true);
  IpcHandle handle{};
  if (::read(fd, handle.data(), handle.size()) != static_cast<ssize_t>(handle.size()))
    return ErrnoStatus("read a handle from a pipe", errno);
  return DeviceMemory::Open(device, handle, bytes);
}

Status ReadMark(const ProbedMemory& probed) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const CudaDevice> device, OpenByUuid(probed.gpu_uuid));
  ASSIGN_OR_RETURN(const DeviceMemory memory, Map(probed.backend, device, probed.fd, probed.bytes));
  ASSIGN_OR_RETURN(const CudaScope scope, device->Enter());
  uint64_t found = 0;
  RETURN_IF_ERROR(CudaStatus(device->driver().cuMemcpyDtoH(&found, memory.address(), sizeof found),
                             "read what another process wrote on GPU " + probed.gpu_uuid));
  if (found == probed.mark) return OkStatus();
  return Internal("the memory holds " + std::to_string(found) + " where the other process wrote " +
                  std::to_string(probed.mark));
}

}  // namespace

Status ProbeWithProcess(const std::shared_ptr<const CudaDevice>& device, Backend backend) {
  const auto mark = std::bit_cast<uint64_t>(RandomBytes<std::array<std::byte, 8>>());
  const bool by_handle = backend == Backend::kCudaIpc;
  ASSIGN_OR_RETURN(const DeviceMemory memory, by_handle ? DeviceMemory::Allocate(device, sizeof mark)
                                                        : DeviceMemory::Create(device, sizeof mark));
  {
    ASSIGN_OR_RETURN(const CudaScope scope, device->Enter());
    RETURN_IF_ERROR(CudaStatus(device->driver().cuMemcpyHtoD(memory.address(), &mark, sizeof mark),
                               "write to GPU " + device->uuid()));
  }
  UniqueFd fd;
  if (by_handle) {
    ASSIGN_OR_RETURN(const IpcHandle handle, memory.Handle());
    ASSIGN_OR_RETURN(fd, SendHandle(handle));
  } else {
    ASSIGN_OR_RETURN(fd, memory.Export());
  }
  // The other process has ended, and so has unmapped the memory before it is freed here.
  return RunProbe(
      {"pinfeed", "doctor-probe", "--backend", BackendName(backend), "--fd", std::to_string(kProbeFd),
       "--gpu", device->uuid(), "--bytes", std::to_string(memory.bytes()), "--mark", std::to_string(mark)},
      fd.get());
}

int Probe(const ProbedMemory& probed) {
  ::alarm(kProbeSeconds);  // bounds how long a hanging driver blocks the doctor
  const Status read = ReadMark(probed);
  if (!read.ok()) std::fprintf(stderr, "%s\n", read.message().c_str());
  return read.ok() ? 0 : 1;
}

}  // namespace pinfeed

// SPDX-License-Identifier: Apache-2.0
// The other process of the stand-in's test. In: a task by name and a socket (descriptor 3 of the caller's
// choice) on which memory comes. Out: exit status 0 when all went as it must, else the reason on stderr.
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "common/cuda/device_memory.h"
#include "tests/support/stand_in_cuda/passed_fd.h"

namespace pinfeed {
namespace {

constexpr uint64_t kBytes = uint64_t{2} << 20;

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "peer: %s\n", why.c_str());
  std::_Exit(1);
}

void Check(CUresult result, const char* what) {
  if (const Status status = CudaStatus(result, what); !status.ok()) Fail(status.ToString());
}

template <typename T>
T Need(Result<T> result) {
  if (!result.ok()) Fail(result.status().ToString());
  return std::move(result).value();
}

uint64_t ReadWord(const CudaDevice& device, CUdeviceptr address) {
  uint64_t word = 0;
  Check(device.driver().cuMemcpyDtoH(&word, address, sizeof word), "read a word");
  return word;
}

// Answers with the first word of the memory.
void ImportDescriptor(int socket, const std::shared_ptr<const CudaDevice>& device) {
  const UniqueFd fd = ReceiveFd(socket);
  if (!fd) Fail("no descriptor came");
  const DeviceMemory memory = Need(DeviceMemory::Import(device, fd.get(), kBytes, true));
  const auto scope = device->Enter();
  const uint64_t word = ReadWord(*device, memory.address());
  if (::write(socket, &word, sizeof word) != sizeof word) Fail("cannot answer");
}

// Reads the memory's first word, and writes that plus one into it.
void OpenHandle(int socket, const std::shared_ptr<const CudaDevice>& device) {
  const CudaDriver& driver = device->driver();
  const auto scope = device->Enter();
  CUipcMemHandle handle{};
  if (::read(socket, &handle, sizeof handle) != sizeof handle) Fail("no handle");
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  Check(driver.cuIpcOpenMemHandle(&first, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "open");
  Check(driver.cuIpcOpenMemHandle(&second, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "open again");
  if (first != second) Fail("two opens gave two addresses");
  Check(driver.cuIpcCloseMemHandle(first), "close");
  const uint64_t word = ReadWord(*device, first) + 1;  // still open
  Check(driver.cuMemcpyHtoD(first, &word, sizeof word), "write");
  Check(driver.cuIpcCloseMemHandle(first), "close again");
  if (driver.cuIpcCloseMemHandle(first) != CUDA_ERROR_INVALID_VALUE) Fail("closed more often than opened");
}

// Leaves main with streams that live and work that is queued.
void LeaveBusy(const std::shared_ptr<const CudaDevice>& device) {
  const CudaDriver& driver = device->driver();
  const auto scope = device->Enter();
  void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) Fail("mmap");
  Check(driver.cuMemHostRegister(page, 4096, 0), "register");
  CUdeviceptr memory = 0;
  Check(driver.cuMemAlloc(&memory, kBytes), "allocate");
  for (int i = 0; i < 8; ++i) {
    CUstream stream = nullptr;
    Check(driver.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), "make a stream");
    for (int k = 0; k < 1000; ++k)
      Check(driver.cuMemcpyHtoDAsync(memory + 4096 * i, page, 4096, stream), "copy");
    if (i % 2 == 0) Check(driver.cuStreamDestroy(stream), "destroy a stream");
  }
}

// Memory of three slots of 4 KiB and an id of sixteen 'i' behind them, for whom the socket leads to, by
// descriptor or by handle; kept until the other end is closed.
void Lend(int socket, const std::shared_ptr<const CudaDevice>& device, bool by_handle) {
  constexpr uint64_t kIdOffset = uint64_t{3} * 4096;
  const DeviceMemory memory =
      Need(by_handle ? DeviceMemory::Allocate(device, kBytes) : DeviceMemory::Create(device, kBytes));
  const std::string id(16, 'i');
  {
    const auto scope = device->Enter();
    Check(device->driver().cuMemcpyHtoD(memory.address() + kIdOffset, id.data(), id.size()), "write the id");
  }
  if (by_handle) {
    const IpcHandle handle = Need(memory.Handle());
    if (::write(socket, handle.data(), handle.size()) != ssize_t{sizeof handle}) Fail("cannot send");
  } else {
    const UniqueFd fd = Need(memory.Export());
    if (!SendFd(socket, fd.get())) Fail("cannot send");
  }
  char byte = 0;
  if (::read(socket, &byte, 1) != 0) Fail("not the end");
}

// Ends at once; a forked child keeps the GPU open until the other end of the socket is closed.
[[noreturn]] void LeaveChild(int socket) {
  const pid_t child = ::fork();
  if (child < 0) Fail("cannot fork");
  char byte = 0;
  if (child == 0) {
    (void)!::read(socket, &byte, 1);
  } else {
    const IpcHandle none{};  // the word that it has begun
    if (::write(socket, none.data(), none.size()) != ssize_t{sizeof none}) Fail("cannot send");
  }
  std::_Exit(0);
}

}  // namespace
}  // namespace pinfeed

int main(int argc, char** argv) {
  using namespace pinfeed;  // NOLINT(google-build-using-namespace): main is the whole program
  if (argc != 3) Fail("usage: peer TASK SOCKET");
  const std::string_view task(argv[1]);
  const int socket = std::atoi(argv[2]);
  const std::shared_ptr<const CudaDevice> device = Need(CudaDevice::Open(task == "lend-other-gpu" ? 1 : 0));
  if (task == "import") {
    ImportDescriptor(socket, device);
  } else if (task == "open") {
    OpenHandle(socket, device);
  } else if (task == "lend-fd") {
    Lend(socket, device, false);
  } else if (task == "lend-handle" || task == "lend-other-gpu") {
    Lend(socket, device, true);
  } else if (task == "leave-child") {
    LeaveChild(socket);
  } else if (task == "leave-busy") {
    LeaveBusy(device);
  } else {
    Fail("no such task");
  }
  return 0;
}

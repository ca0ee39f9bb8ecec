// SPDX-License-Identifier: Apache-2.0
#include "server/memory/client_process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace pinfeed {
namespace {

constexpr size_t kMaxRemainingMappers = 64;

}  // namespace

Result<ClientProcess> ClientProcess::Open(pid_t pid) {
  UniqueFd opened(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!opened) return ErrnoStatus("open a pidfd of process " + std::to_string(pid), errno);
  return ClientProcess{pid, std::make_shared<const UniqueFd>(std::move(opened))};
}

bool ClientProcess::HasEnded() const {
  pollfd wait{pidfd->get(), POLLIN, 0};
  return ::poll(&wait, 1, 0) == 1;
}

void AddRemainingMapper(ClientProcess process, std::vector<ClientProcess>& processes) {
  if (processes.size() >= kMaxRemainingMappers)
    std::erase_if(processes, [](const ClientProcess& one) { return one.HasEnded(); });
  processes.push_back(std::move(process));
}

}  // namespace pinfeed

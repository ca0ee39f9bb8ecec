// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/acceptor.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace pinfeed {
namespace {

constexpr int kPauseMs = 100;  // when no descriptor is left

// No more than a quarter of the descriptors, which sessions need too.
size_t MaxConnectionsAUser(size_t most) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return most;
  return static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur / 4, most));
}

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::Create(Listener listener, PeerRegistry& peers, Refusals& refusals,
                                                   HandOver hand_over, size_t most) {
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop) return ErrnoStatus("create an eventfd", errno);
  return std::unique_ptr<Acceptor>(
      new Acceptor(std::move(listener), std::move(stop), peers, refusals, std::move(hand_over), most));
}

Acceptor::~Acceptor() {
  Stop();
}

void Acceptor::Start() {
  thread_ = std::thread([this] { Run(); });
  ::pthread_setname_np(thread_.native_handle(), "acceptor");
}

void Acceptor::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  PF_CHECK(::write(stop_.get(), &one, sizeof one) == sizeof one, "an eventfd of ours takes a number");
  thread_.join();
}

void Acceptor::Run() {
  bool paused = false;
  while (true) {
    std::array<pollfd, 2> waits = {pollfd{stop_.get(), POLLIN, 0},
                                   pollfd{paused ? -1 : listener_.fd(), POLLIN, 0}};
    if (::poll(waits.data(), waits.size(), paused ? kPauseMs : -1) < 0) {
      if (errno == EINTR) continue;
      refusals_.Count(Refusal::kDescriptors, ErrnoStatus("wait for connections", errno).ToString());
      std::this_thread::sleep_for(std::chrono::milliseconds(kPauseMs));  // the kernel lacks memory
      continue;
    }
    if (waits[0].revents != 0) return;
    Result<std::optional<Listener::Connection>> accepted = listener_.Accept();
    paused = !accepted.ok();
    if (paused || !accepted->has_value()) continue;
    if (const size_t open = peers_.CountOpen((*accepted)->peer.uid); open >= MaxConnectionsAUser(most_)) {
      refusals_.Count(Refusal::kDescriptors, "a connection from " + Describe((*accepted)->peer) + ": " +
                                                 std::to_string(open) + " of this user are open");
      continue;
    }
    peers_.Set((*accepted)->fd.get(), (*accepted)->peer);
    hand_over_(std::move((*accepted)->fd));
  }
}

}  // namespace pinfeed

// SPDX-License-Identifier: Apache-2.0
// A daemon made of memfds and two sockets, for the client's tests: it serves the protocol of
// common/wire/shared_page.h and feeder.proto step by step under the test's hands, honestly or (by its Script)
// not.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/sync.h"
#include "common/base/unique_handle.h"
#include "common/os/memfd.h"
#include "common/wire/shared_page.h"
#include "pinfeed/v1/feeder.grpc.pb.h"

namespace pinfeed {

// What the tests ask a fake daemon for.
inline constexpr char kSpec[] = R"({"dataset": {"path": "/data"}, "batch_size": 4})";

// Offers the same arena as memory of a GPU, by a handle of cuda-ipc.
void OfferHandle(v1::OpenFeedResponse& offer, size_t handle_bytes = 64);
// Fills one entry of a list of tensors.
void SetTensor(v1::TensorPlace* tensor, const char* name, v1::DType dtype, const std::vector<int64_t>& shape,
               uint64_t offset, uint64_t bytes);
// A listening socket for lifelines at the path.
UniqueFd ListenForLifelines(const std::string& path);
// Sends one frame with these descriptors.
void SendFrame(int peer, const LifelineFrame& frame, const std::vector<int>& fds = {});

// What one OpenFeed made. Publishing is for one thread at a time.
struct FakeSession {
  v1::OpenFeedRequest request;
  std::string token;
  UniqueFd publish_fd, release_fd, doorbell, arena_fd;
  Mapping publish, release, arena;
  uint64_t published = 0;
  uint32_t slot_count = 0;

  PublishPage& page() { return *reinterpret_cast<PublishPage*>(publish.data()); }
  uint64_t Released(uint32_t slot) const {
    return reinterpret_cast<const ReleasePage*>(release.data())->slots[slot].generation.load();
  }
  const ReleasePage& release_page() const { return *reinterpret_cast<const ReleasePage*>(release.data()); }

  // Publishes batch number `published` of 4 samples, in slot (number % slot_count) with generation number +
  // 1, its position behind it; `edit` may change the descriptor. The slot's first tensor is filled with the
  // batch index's low byte.
  void Publish(const std::function<void(BatchDescriptor&)>& edit = {});
  void SetState(FeedState state);
  void Fail(uint32_t code, const std::string& text, uint32_t claimed_bytes);
  // Times the doorbell was rung since the last call.
  uint64_t Rings();
};

// Purpose: see above. Owns: a gRPC server, a listener, one thread, the sessions. Threads: the test's calls
// are serialised with the own threads. Errors: those of the test's own set-up end the test program.
class FakeDaemon final : private v1::Feeder::Service {
 public:
  struct Script {
    std::function<void(v1::OpenFeedResponse&)> offer{};                // changes what OpenFeed answers
    std::function<grpc::Status(const v1::OpenFeedRequest&)> refuse{};  // may refuse an OpenFeed
    std::function<void(FakeSession&)> opened{};  // e.g. publishes before the client attaches
    std::function<void(FakeSession&, std::vector<int>&)> descriptors{};  // changes what the welcome carries
    std::function<void(LifelineFrame&)> welcome{};                       // changes the welcome itself
    bool leave = false;                                                  // hangs up right behind the welcome
  };

  FakeDaemon(std::filesystem::path directory, Script script);
  explicit FakeDaemon(std::filesystem::path directory) : FakeDaemon(std::move(directory), Script()) {}
  // As a killed daemon: sockets close, pages stay as they are.
  ~FakeDaemon() override;

  std::string address() const { return (directory_ / "feed.sock").string(); }
  // The session of the n-th OpenFeed, once its lifeline is attached.
  FakeSession& Session(size_t n);
  size_t session_count();
  // Waits until the n-th session's client said goodbye.
  void WaitForBye(size_t n);
  // Likewise that it takes nothing further, which was answered.
  void WaitForLeave(size_t n);
  void HangUp(size_t n);

 private:
  struct Entry {
    FakeSession session;
    UniqueFd lifeline;
    bool attached = false;
    bool bye = false;
    bool left = false;
  };

  grpc::Status OpenFeed(grpc::ServerContext*, const v1::OpenFeedRequest* request,
                        v1::OpenFeedResponse* response) override;
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override;
  void Serve();
  void Welcome(UniqueFd peer);
  void ReadLifelines();

  const std::filesystem::path directory_;
  const Script script_;
  UniqueFd listener_;
  UniqueFd wake_;
  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Entry>> entries_ PF_GUARDED_BY(mutex_);
  bool stop_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace pinfeed

// SPDX-License-Identifier: Apache-2.0
// The protocol spoken by hand, so that tests can also speak it wrongly.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_handle.h"
#include "common/wire/shared_page.h"
#include "pinfeed/v1/feeder.grpc.pb.h"

namespace pinfeed {

// Purpose: calls of pinfeed.v1.Feeder over the daemon's socket. Threads: one.
class RawClient {
 public:
  explicit RawClient(const std::string& rpc_path);

  v1::Feeder::Stub& stub() { return *stub_; }
  // A valid request for the dataset.
  static v1::OpenFeedRequest Request(const std::string& dataset_path);
  grpc::Status Open(const v1::OpenFeedRequest& request, v1::OpenFeedResponse* response);
  // A failed call ends the test program: the daemon must always answer this one.
  v1::GetStatusResponse Status();

 private:
  std::unique_ptr<v1::Feeder::Stub> stub_;
};

// What came over a lifeline.
struct Welcome {
  bool hung_up = false;  // instead of a frame
  LifelineFrame frame{};
  std::vector<UniqueFd> fds;
};

// Purpose: one connection to the lifeline socket. Owns: it. Threads: one. Every wait ends after 30 s with a
// hang-up.
class RawLifeline {
 public:
  explicit RawLifeline(const std::string& path);

  // Returns false if the kernel sends no descriptors to the daemon (Linux 6.16 and later).
  bool Send(const void* bytes, size_t size, const std::vector<int>& fds = {}) const;
  void SendHello(const std::string& token) const;
  void SendBye() const;
  Welcome Receive() const;
  // Until the daemon hangs up; frames that come before are dropped.
  bool AwaitHangUp() const;
  void Close() { fd_.reset(); }

 private:
  UniqueFd fd_;
};

}  // namespace pinfeed

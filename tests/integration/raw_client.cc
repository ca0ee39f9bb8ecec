// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/raw_client.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <utility>

#include "common/os/socket_message.h"
#include "common/os/unix_address.h"

namespace pinfeed {
namespace {

constexpr int kWaitMs = 30'000;

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

}  // namespace

RawClient::RawClient(const std::string& rpc_path)
    : stub_(
          v1::Feeder::NewStub(grpc::CreateChannel("unix:" + rpc_path, grpc::InsecureChannelCredentials()))) {}

v1::OpenFeedRequest RawClient::Request(const std::string& dataset_path) {
  v1::OpenFeedRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_boot_id(BootId());
  request.set_client_name("raw client");
  request.mutable_spec()->mutable_dataset()->set_path(dataset_path);
  request.mutable_spec()->set_batch_size(4);
  return request;
}

grpc::Status RawClient::Open(const v1::OpenFeedRequest& request, v1::OpenFeedResponse* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(kWaitMs));
  return stub_->OpenFeed(&context, request, response);
}

v1::GetStatusResponse RawClient::Status() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(kWaitMs));
  context.set_wait_for_ready(true);
  v1::GetStatusResponse response;
  const grpc::Status status = stub_->GetStatus(&context, {}, &response);
  PF_CHECK(status.ok(), status.error_message());
  return response;
}

RawLifeline::RawLifeline(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  PF_CHECK(AtSocketPath(::connect, fd_.get(), path) == 0, "connect to " + path);
}

bool RawLifeline::Send(const void* bytes, size_t size, const std::vector<int>& fds) const {
  const int error = SendSocketMessage(fd_.get(), {static_cast<const std::byte*>(bytes), size}, fds);
  if (error == EPERM && !fds.empty()) return false;
  PF_CHECK(error == 0, "send to the lifeline");
  return true;
}

void RawLifeline::SendHello(const std::string& token) const {
  LifelineFrame frame = MakeLifelineFrame(LifelineKind::kHello);
  PF_CHECK(token.size() == kTokenBytes, "a token has 32 bytes");
  std::memcpy(frame.token, token.data(), kTokenBytes);
  Send(&frame, sizeof frame);
}

void RawLifeline::SendBye() const {
  const LifelineFrame frame = MakeLifelineFrame(LifelineKind::kBye);
  Send(&frame, sizeof frame);
}

Welcome RawLifeline::Receive() const {
  Welcome out;
  pollfd wait{fd_.get(), POLLIN, 0};
  if (::poll(&wait, 1, kWaitMs) != 1) {
    out.hung_up = true;
    return out;
  }
  SocketMessage message = ReceiveSocketMessage(fd_.get(), std::as_writable_bytes(std::span(&out.frame, 1)));
  out.hung_up = message.error != 0 || message.bytes == 0;
  out.fds = std::move(message.fds);
  return out;
}

bool RawLifeline::AwaitHangUp() const {
  while (true) {
    pollfd wait{fd_.get(), POLLIN, 0};
    if (::poll(&wait, 1, kWaitMs) != 1) return false;
    if (Receive().hung_up) return true;
  }
}

}  // namespace pinfeed

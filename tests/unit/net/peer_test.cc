// SPDX-License-Identifier: Apache-2.0
#include "server/net/peer.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "common/base/unique_handle.h"
#include "pinfeed/v1/feeder.grpc.pb.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(PeerTest, ProcessOfAnotherPidNamespaceIsNamed) {
  EXPECT_OK(CheckSamePidNamespace(::getpid()));
  const TempDir proc;
  const auto status_of = [&](pid_t pid, const std::string& text) {
    const std::filesystem::path folder = proc.path() / std::to_string(pid);
    std::filesystem::create_directory(folder);
    std::ofstream(folder / "status") << "Name:\ttrain\n" << text << "Threads:\t1\n";
    return CheckSamePidNamespace(pid, proc.path().string());
  };
  EXPECT_OK(status_of(12, "NSpid:\t12\n"));
  EXPECT_EQ(status_of(13, "NSpid:\t13\t1\n").code(), Code::kFailedPrecondition);
  EXPECT_EQ(status_of(14, "NSpid:\t7\n").code(), Code::kFailedPrecondition);  // a /proc of elsewhere
  EXPECT_EQ(status_of(15, "").code(), Code::kFailedPrecondition);
  EXPECT_EQ(CheckSamePidNamespace(16, proc.path().string()).code(), Code::kFailedPrecondition);
}

TEST(PeerRegistryTest, FindsByTheNameThatGrpcGives) {
  PeerRegistry peers;
  peers.Set(7, {11, 1000, 100});
  peers.Set(7, {12, 1001, 100});  // the number was given out again
  ASSERT_TRUE(peers.Find("fd:7").has_value());
  EXPECT_EQ(peers.Find("fd:7")->peer.pid, 12);
  for (const char* other : {"fd:8", "fd:", "fd:7x", "fd:-7", "fd:99999999999999999999", "unix:7", ""})
    EXPECT_FALSE(peers.Find(other).has_value()) << other;
}

// Answers only once its client has hung up, and sees whether its connection's number is given out meanwhile.
class HungUpService final : public v1::Feeder::Service {
 public:
  explicit HungUpService(int fd) : fd_(fd) {}
  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* /*request*/,
                         v1::GetStatusResponse* /*response*/) override {
    entered.set_value(context->peer());
    while (!context->IsCancelled()) std::this_thread::yield();
    bool reused = false;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (std::chrono::steady_clock::now() < end) {
      const UniqueFd lowest_free(::fcntl(fd_, F_DUPFD_CLOEXEC, fd_));
      reused = reused || lowest_free.get() == fd_ || !lowest_free;  // no longer open: EBADF
    }
    kept.set_value(!reused);
    return grpc::Status::OK;
  }
  std::promise<std::string> entered;
  std::promise<bool> kept;

 private:
  const int fd_;
};

// What the registry relies on: gRPC closes a connection's descriptor only after the last call that came over
// it, so the number cannot be another client's while a call could still be looked up by it.
TEST(PeerRegistryTest, NumberOfAConnectionIsNotGivenOutWhileACallOfItRuns) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  HungUpService service(ends[0]);
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  grpc::AddInsecureChannelFromFd(server.get(), ends[0]);
  std::future<std::string> entered = service.entered.get_future();
  std::future<bool> kept = service.kept.get_future();
  {
    const auto stub = v1::Feeder::NewStub(grpc::CreateInsecureChannelFromFd("server", ends[1]));
    grpc::ClientContext context;
    std::thread hangs_up([&] {
      EXPECT_EQ(entered.get(), "fd:" + std::to_string(ends[0]));
      ::shutdown(ends[1], SHUT_RDWR);
    });
    v1::GetStatusResponse response;
    EXPECT_FALSE(stub->GetStatus(&context, {}, &response).ok());
    hangs_up.join();
  }
  EXPECT_TRUE(kept.get());
  server->Shutdown();
}

}  // namespace
}  // namespace pinfeed

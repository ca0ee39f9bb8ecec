// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/service.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/session/opener_fixture.h"

namespace pinfeed {
namespace {

// The service behind a gRPC server with one connection.
class ServiceTest : public OpenerTest {
 protected:
  ServiceTest() {
    lifelines_ = LifelineServer::Create(Listener::Create((directory_ / "lifeline").string(), SOCK_SEQPACKET,
                                                         {.group = {}, .is_served = {}}, refusals_)
                                            .value(),
                                        std::chrono::seconds(5), sessions_, refusals_)
                     .value();
    service_ = std::make_unique<FeederService>(
        FeederService::Parts{callers_, opener_, datasets_, dataset_opener_, *lifelines_, refusals_,
                             [this] { return snapshot_(); }, "1", "boot", 1});
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends_), 0);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    grpc::AddInsecureChannelFromFd(server_.get(), ends_[0]);
    stub_ = v1::Feeder::NewStub(grpc::CreateInsecureChannelFromFd("server", ends_[1]));
  }
  ~ServiceTest() override {
    stub_.reset();
    server_->Shutdown();
    server_.reset();
  }

  grpc::Status OpenFeed() {
    grpc::ClientContext context;
    v1::OpenFeedResponse response;
    return stub_->OpenFeed(&context, {}, &response);
  }
  grpc::Status ListDatasets() {
    grpc::ClientContext context;
    v1::ListDatasetsResponse response;
    return stub_->ListDatasets(&context, {}, &response);
  }
  uint64_t refused() const { return refusals_.counts()[static_cast<size_t>(Refusal::kRequest)]; }
  uint64_t refused(Code code) const { return refusals_.codes()[CodeIndex(code)]; }

  std::function<DaemonSnapshot()> snapshot_ = [] { return DaemonSnapshot(); };
  const TempDir directory_;
  Refusals refusals_;
  PeerRegistry peers_;
  const Callers callers_{peers_, nullptr};
  const DatasetCache datasets_{{}};
  DatasetOpener dataset_opener_{
      [](uid_t, const DatasetSpec&) -> DatasetOpener::Opened { return NotFound("no dataset"); },
      [](const std::string&) { return std::string(); }};
  std::unique_ptr<LifelineServer> lifelines_;
  std::unique_ptr<FeederService> service_;
  std::unique_ptr<grpc::Server> server_;
  int ends_[2] = {-1, -1};  // gRPC's
  std::unique_ptr<v1::Feeder::Stub> stub_;
};

TEST_F(ServiceTest, CallWithoutCredentialsOnRecordIsCounted) {
  const grpc::Status opened = OpenFeed();
  EXPECT_EQ(opened.error_code(), grpc::INTERNAL);
  EXPECT_THAT(opened.error_message(), HasSubstr("not on record"));
  EXPECT_EQ(refused(), 1U);
  EXPECT_EQ(refused(Code::kInternal), 1U);
  EXPECT_EQ(ListDatasets().error_code(), grpc::INTERNAL);
  EXPECT_EQ(refused(), 2U);
  EXPECT_EQ(refused(Code::kInternal), 2U);
}

TEST_F(ServiceTest, CallWithACertificateThatIsNoLongerAllowedIsCounted) {
  peers_.Set(ends_[0], {.pid = 0, .uid = kRemoteUser, .gid = 0}, {"ops.example"});
  const grpc::Status listed = ListDatasets();
  EXPECT_EQ(listed.error_code(), grpc::PERMISSION_DENIED);
  EXPECT_THAT(listed.error_message(), HasSubstr("no longer in admin_clients"));
  EXPECT_EQ(refused(), 1U);
  EXPECT_EQ(OpenFeed().error_code(), grpc::PERMISSION_DENIED);
  EXPECT_EQ(refused(), 2U);
  EXPECT_EQ(refused(Code::kPermissionDenied), 2U);
}

struct StatusCall {
  grpc::ClientContext context;
  v1::GetStatusRequest request;
  v1::GetStatusResponse response;
  std::promise<grpc::Status> answered;
};

TEST_F(ServiceTest, RequestsOfCallsThatWaitAreBounded) {
  peers_.Set(ends_[0], {.pid = 1, .uid = 1000, .gid = 1000}, {});
  std::promise<void> go;
  snapshot_ = [gone = go.get_future().share()] {
    gone.wait();
    return DaemonSnapshot();
  };
  std::promise<void> one_is_refused;
  std::atomic<int> refusals = 0;
  std::vector<std::unique_ptr<StatusCall>> calls;
  for (int i = 0; i < 20; ++i) {
    StatusCall& call = *calls.emplace_back(std::make_unique<StatusCall>());
    call.request.GetReflection()
        ->MutableUnknownFields(&call.request)
        ->AddLengthDelimited(1000, std::string(3 << 20, 'x'));
    stub_->async()->GetStatus(&call.context, &call.request, &call.response, [&](const grpc::Status& status) {
      if (status.error_code() == grpc::RESOURCE_EXHAUSTED && refusals++ == 0) one_is_refused.set_value();
      call.answered.set_value(status);
    });
  }
  one_is_refused.get_future().wait();
  go.set_value();
  int answered = 0;
  for (const auto& call : calls) {
    const grpc::Status status = call->answered.get_future().get();
    if (status.ok())
      ++answered;
    else
      EXPECT_THAT(status.error_message(), HasSubstr("requests of this user that wait for an answer take"));
  }
  EXPECT_GE(answered, 5);
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  EXPECT_TRUE(stub_->GetStatus(&context, {}, &response).ok()) << "what was answered counts no more";
}

}  // namespace
}  // namespace pinfeed

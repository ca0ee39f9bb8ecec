// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/client/client_fake_daemon.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cstring>
#include <span>
#include <utility>

#include "common/os/futex.h"
#include "common/os/socket_message.h"
#include "common/os/unix_address.h"

namespace pinfeed {
namespace {

constexpr uint32_t kBatchSize = 4;
constexpr uint32_t kFakeSlots = 3;
constexpr uint64_t kStride = 2 << 20;

}  // namespace

void SetTensor(v1::TensorPlace* tensor, const char* name, v1::DType dtype, const std::vector<int64_t>& shape,
               uint64_t offset, uint64_t bytes) {
  tensor->set_name(name);
  tensor->set_dtype(dtype);
  tensor->mutable_shape()->Add(shape.begin(), shape.end());
  tensor->set_offset(offset);
  tensor->set_sample_bytes(bytes);
}

void OfferHandle(v1::OpenFeedResponse& offer, size_t handle_bytes) {
  v1::ArenaOffer& arena = *offer.mutable_arena();
  arena.set_backend(v1::FeedSpec::CUDA_IPC);
  arena.set_id(std::string(16, 'i'));
  arena.set_bytes(arena.bytes() + 4096);
  arena.set_cuda_ipc_handle(std::string(handle_bytes, 'h'));
  for (int i = 0; i < offer.tensors_size(); ++i) {
    v1::OutputTensor& output = *offer.add_outputs();
    output.set_name(offer.tensors(i).name());
    output.set_dtype(offer.tensors(i).dtype());
    *output.mutable_shape() = offer.tensors(i).shape();
    output.set_tensor(static_cast<uint32_t>(i));
  }
}

UniqueFd ListenForLifelines(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  std::filesystem::remove(path);
  PF_CHECK(AtSocketPath(::bind, fd.get(), path) == 0, path);
  PF_CHECK(::listen(fd.get(), 16) == 0, path);
  return fd;
}

void SendFrame(int peer, const LifelineFrame& frame, const std::vector<int>& fds) {
  PF_CHECK(SendSocketMessage(peer, std::as_bytes(std::span(&frame, 1)), fds) == 0, "send a frame");
}

void FakeSession::Publish(const std::function<void(BatchDescriptor&)>& edit) {
  BatchDescriptor batch{};
  batch.sequence = published;
  batch.generation = published + 1;
  batch.epoch = 0;
  batch.batch_index = request.cursor().position() / kBatchSize + published;
  batch.position = (batch.batch_index + 1) * kBatchSize;
  batch.slot = static_cast<uint32_t>(published % slot_count);
  batch.samples = kBatchSize;
  if (edit) edit(batch);
  if (batch.slot < slot_count)
    std::memset(arena.data() + batch.slot * kStride, static_cast<int>(batch.batch_index & 0xff), 24);
  page().ring[published % kMaxSlots] = batch;
  page().published.store(++published, std::memory_order_release);
  page().wake.fetch_add(1);
  FutexWakeAll(page().wake);
}

void FakeSession::SetState(FeedState state) {
  page().state.store(static_cast<uint32_t>(state), std::memory_order_release);
  page().wake.fetch_add(1);
  FutexWakeAll(page().wake);
}

void FakeSession::Fail(uint32_t code, const std::string& text, uint32_t claimed_bytes) {
  std::memcpy(page().error_text, text.data(), text.size());
  page().error_code = code;
  page().error_bytes = claimed_bytes;
  SetState(FeedState::kFailed);
}

uint64_t FakeSession::Rings() {
  uint64_t rings = 0;
  return ::read(doorbell.get(), &rings, sizeof(rings)) == sizeof(rings) ? rings : 0;
}

FakeDaemon::FakeDaemon(std::filesystem::path directory, Script script)
    : directory_(std::move(directory)),
      script_(std::move(script)),
      listener_(ListenForLifelines((directory_ / "lifeline.sock").string())),
      wake_(::eventfd(0, EFD_CLOEXEC)) {
  std::filesystem::remove(address());
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + address(), grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  PF_CHECK(server_ != nullptr, address());
  thread_ = std::thread([this] { Serve(); });
}

FakeDaemon::~FakeDaemon() {
  server_->Shutdown(std::chrono::system_clock::now());
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  const uint64_t one = 1;
  PF_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one), "wake the fake daemon");
  thread_.join();
}

grpc::Status FakeDaemon::OpenFeed(grpc::ServerContext* /*context*/, const v1::OpenFeedRequest* request,
                                  v1::OpenFeedResponse* response) {
  if (script_.refuse) {
    grpc::Status refused = script_.refuse(*request);
    if (!refused.ok()) return refused;
  }
  const MutexLock lock(mutex_);
  auto entry = std::make_unique<Entry>();
  FakeSession& session = entry->session;
  session.request = *request;
  session.token = std::string(kTokenBytes - 1, 't') + static_cast<char>('0' + entries_.size());
  session.slot_count = kFakeSlots;
  session.publish_fd = CreateMemfd("fake-publish", kPublishPageBytes).value();
  session.publish =
      Mapping::Map(session.publish_fd.get(), kPublishPageBytes, Access::kReadWrite, true).value();
  session.release_fd = CreateMemfd("fake-release", kReleasePageBytes).value();
  session.release =
      Mapping::Map(session.release_fd.get(), kReleasePageBytes, Access::kReadOnly, true).value();
  session.arena_fd = CreateMemfd("fake-arena", kFakeSlots * kStride).value();
  session.arena =
      Mapping::Map(session.arena_fd.get(), kFakeSlots * kStride, Access::kReadWrite, true).value();
  session.doorbell = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  session.page().magic = kPublishPageMagic;
  session.page().version = kProtocolVersion;
  session.page().slot_count = kFakeSlots;
  session.page().state.store(static_cast<uint32_t>(FeedState::kRunning));

  response->set_session_id(entries_.size() + 1);
  response->set_token(session.token);
  response->set_batch_size(kBatchSize);
  SetTensor(response->add_tensors(), "image", v1::UINT8, {2, 3}, 0, 6);
  SetTensor(response->add_tensors(), "label", v1::INT64, {}, 512, 8);
  response->mutable_arena()->set_backend(v1::FeedSpec::HOST);
  response->mutable_arena()->set_bytes(kFakeSlots * kStride);
  response->mutable_arena()->set_slot_count(kFakeSlots);
  response->mutable_arena()->set_slot_stride(kStride);
  response->set_fingerprint("00000000000f00d0");
  response->set_dataset_samples(40);
  response->set_batches_per_epoch(10);
  *response->mutable_start() = request->cursor();
  response->mutable_start()->set_version(2);
  response->mutable_start()->set_fingerprint("00000000000f00d0");
  response->set_lifeline_path((directory_ / "lifeline.sock").string());
  if (script_.offer) script_.offer(*response);
  if (script_.opened) script_.opened(session);
  entries_.push_back(std::move(entry));
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::GetStatus(grpc::ServerContext* /*context*/, const v1::GetStatusRequest* /*request*/,
                                   v1::GetStatusResponse* response) {
  response->set_state("ready");
  return grpc::Status::OK;
}

void FakeDaemon::Serve() {
  for (;;) {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    {
      const MutexLock lock(mutex_);
      if (stop_) break;
      for (const auto& entry : entries_) {
        if (entry->lifeline) polled.push_back({entry->lifeline.get(), POLLIN, 0});
      }
    }
    PF_CHECK(::poll(polled.data(), polled.size(), -1) >= 0 || errno == EINTR, "poll");
    if ((polled[0].revents & POLLIN) != 0) {
      uint64_t wakes = 0;
      PF_CHECK(::read(wake_.get(), &wakes, sizeof(wakes)) == sizeof(wakes), "read the wake-up");
    }
    if ((polled[1].revents & POLLIN) != 0) {
      UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (peer) Welcome(std::move(peer));
    }
    ReadLifelines();
  }
}

void FakeDaemon::Welcome(UniqueFd peer) {
  LifelineFrame hello{};
  if (::recv(peer.get(), &hello, sizeof(hello), 0) != sizeof(hello)) return;
  const std::string token(reinterpret_cast<const char*>(hello.token), sizeof(hello.token));
  const MutexLock lock(mutex_);
  for (const auto& entry : entries_) {
    FakeSession& session = entry->session;
    if (session.token != token) continue;
    std::vector<int> fds{session.publish_fd.get(), session.release_fd.get(), session.doorbell.get(),
                         session.arena_fd.get()};
    LifelineFrame frame = MakeLifelineFrame(LifelineKind::kWelcome);
    if (script_.descriptors) script_.descriptors(session, fds);
    if (script_.welcome) script_.welcome(frame);
    SendFrame(peer.get(), frame, fds);
    if (!script_.leave) entry->lifeline = std::move(peer);
    entry->attached = true;
    break;
  }
  changed_.NotifyAll();
}

void FakeDaemon::ReadLifelines() {
  const MutexLock lock(mutex_);
  for (const auto& entry : entries_) {
    if (!entry->lifeline) continue;
    LifelineFrame frame{};
    const ssize_t bytes = ::recv(entry->lifeline.get(), &frame, sizeof(frame), MSG_DONTWAIT);
    if (bytes < 0) continue;
    if (bytes == sizeof(frame) && frame.kind == static_cast<uint32_t>(LifelineKind::kLeave)) {
      entry->session.SetState(FeedState::kEvicted);
      entry->session.page().limit.store(entry->session.release_page().taken.load());
      entry->left = true;
      continue;
    }
    if (bytes == sizeof(frame) && frame.kind == static_cast<uint32_t>(LifelineKind::kBye)) entry->bye = true;
    entry->lifeline.reset();
  }
  changed_.NotifyAll();
}

FakeSession& FakeDaemon::Session(size_t n) {
  const MutexLock lock(mutex_);
  while (entries_.size() <= n || !entries_[n]->attached) changed_.Wait(mutex_);
  return entries_[n]->session;
}

size_t FakeDaemon::session_count() {
  const MutexLock lock(mutex_);
  return entries_.size();
}

void FakeDaemon::WaitForBye(size_t n) {
  const MutexLock lock(mutex_);
  while (!entries_[n]->bye) changed_.Wait(mutex_);
}

void FakeDaemon::WaitForLeave(size_t n) {
  const MutexLock lock(mutex_);
  while (!entries_[n]->left) changed_.Wait(mutex_);
}

void FakeDaemon::HangUp(size_t n) {
  {
    const MutexLock lock(mutex_);
    entries_[n]->lifeline.reset();
  }
  const uint64_t one = 1;
  PF_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one), "wake the fake daemon");
}

}  // namespace pinfeed

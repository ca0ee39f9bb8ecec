// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/status_message.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "common/base/quote.h"
#include "common/spec/backend_name.h"
#include "proto/convert.h"

namespace pinfeed {
namespace {

// Makes a string valid UTF-8, as proto3 requires. Paths, and errors that quote them, may not be.
std::string Utf8(const std::string& text) {
  return IsUtf8(text) ? text : EscapeName(text);
}

void FillShares(const StallShares& in, v1::StallShares& out) {
  const auto share = [&](StallCause cause) { return in[static_cast<size_t>(cause)]; };
  out.set_read(share(StallCause::kRead));
  out.set_decode(share(StallCause::kDecode));
  out.set_workers(share(StallCause::kWorkers));
  out.set_copy(share(StallCause::kCopy));
  out.set_consumer(share(StallCause::kConsumer));
  out.set_group(share(StallCause::kGroup));
}

void FillSession(const SessionSnapshot& in, v1::SessionStatus& out) {
  out.set_id(in.id);
  out.set_pid(in.pid);
  out.set_uid(in.uid);
  out.set_client_name(in.client_name);
  out.set_state(in.state);
  out.set_batches_published(in.batches_published);
  out.set_batches_taken(in.batches_taken);
  out.set_batches_copied(in.batches_copied);
  out.set_wait_seconds(in.wait_seconds);
  out.set_slots_lent(in.slots_lent);
  out.set_ignored_releases(in.ignored_releases);
  out.set_slots_held(in.slots_held);
  out.set_oldest_lease_seconds(in.oldest_lease_seconds);
  out.set_backend(in.backend);
  out.set_fallback(Utf8(in.fallback));
  v1::StallSeconds& stall = *out.mutable_stall();
  const auto seconds = [&](StallCause cause) { return Seconds(in.stall_ns[static_cast<size_t>(cause)]); };
  stall.set_read(seconds(StallCause::kRead));
  stall.set_decode(seconds(StallCause::kDecode));
  stall.set_workers(seconds(StallCause::kWorkers));
  stall.set_copy(seconds(StallCause::kCopy));
  stall.set_consumer(seconds(StallCause::kConsumer));
  stall.set_group(seconds(StallCause::kGroup));
  if (in.recent) FillShares(*in.recent, *out.mutable_recent());
}

void FillFeed(const FeedReport& report, v1::FeedStatus& out) {
  const FeedSnapshot& feed = report.feed;
  out.set_id(feed.id);
  out.set_dataset(Utf8(feed.dataset));
  out.set_state(feed.state);
  if (!feed.error.ok()) out.set_error(Utf8(feed.error.ToString()));
  out.set_epoch(feed.epoch);
  out.set_batch_index(feed.batch_index);
  out.set_slots(report.slots);
  out.set_slots_free(feed.slots_free);
  out.set_slots_filling(feed.slots_filling);
  out.set_slots_ready(feed.slots_ready);
  out.set_slots_lent(feed.slots_lent);
  out.set_arena_bytes(feed.arena_bytes);
  out.set_samples(feed.samples);
  out.set_bytes(feed.bytes);
  out.set_bad_samples(feed.bad_samples);
  for (const BadSampleNote& note : feed.last_bad_samples) {
    v1::BadSample& bad = *out.add_last_bad_samples();
    bad.set_sample_id(note.sample_id);
    bad.set_reason(Utf8(note.reason));
  }
  out.set_read_seconds(Seconds(feed.read_ns));
  out.set_decode_seconds(Seconds(feed.decode_ns));
  out.set_starved_seconds(Seconds(feed.starved_ns));
  out.set_full_seconds(Seconds(feed.full_ns));
  out.set_bound_on(feed.bound_on);
  out.set_bound_share(std::clamp(feed.bound_share, 0.0, 1.0));
  for (const SessionSnapshot& session : report.sessions) FillSession(session, *out.add_sessions());
  out.set_sharing(SharingName(feed.sharing));
  if (feed.recent) FillShares(*feed.recent, *out.mutable_recent());
}

void FillHung(const HungThread& in, v1::HungThread& out) {
  out.set_thread(in.thread);
  out.set_seconds(std::chrono::duration<double>(in.age).count());
  out.set_gpu(in.gpu);
  out.set_chore(Utf8(in.operation));
  if (!in.gpu.empty() || !in.operation.empty()) return;
  out.set_feed_id(in.feed);
  out.set_sample_id(in.sample);
  out.set_sample(Utf8(in.sample_name));
}

}  // namespace

void FillStatus(const DaemonSnapshot& snapshot, const std::string& version, v1::GetStatusResponse& out) {
  out.set_version(version);
  out.set_server_epoch(snapshot.server_epoch);
  out.set_pid(::getpid());
  out.set_uptime_seconds(snapshot.uptime_seconds);
  out.set_state(snapshot.draining ? "draining" : "ready");
  out.set_workers(snapshot.workers);
  out.set_workers_busy(snapshot.workers_busy);
  out.set_pool_capacity_bytes(snapshot.pool_capacity_bytes);
  out.set_pool_used_bytes(snapshot.pool_used_bytes);
  out.set_open_fds(snapshot.open_fds);
  out.set_resident_bytes(snapshot.resident_bytes);
  for (const FeedReport& feed : snapshot.feeds) FillFeed(feed, *out.add_feeds());
  out.set_sessions_opened(snapshot.sessions_opened);
  out.set_sessions_closed(snapshot.sessions_closed);
  out.set_refused_requests(std::accumulate(snapshot.refusals.begin(), snapshot.refusals.end(), uint64_t{0}));
  out.set_backend(snapshot.backend);
  out.set_draining_seconds(snapshot.draining_seconds);
  out.set_kept_bytes(snapshot.kept_bytes);
  for (const HungThread& hung : snapshot.hung) FillHung(hung, *out.add_hung());
  v1::UserLimits& limits = *out.mutable_user_limits();
  limits.set_sessions(snapshot.user_limits.sessions);
  limits.set_pool_bytes(snapshot.user_limits.pool_bytes);
  limits.set_pinned_bytes(snapshot.user_limits.pinned_bytes);
  limits.set_gpu_bytes(snapshot.user_limits.gpu_bytes);
  for (const UserSnapshot& user : snapshot.users) {
    v1::UserStatus& status = *out.add_users();
    status.set_uid(user.uid);
    status.set_sessions(user.sessions);
    status.set_pool_bytes(user.pool_bytes);
    status.set_pinned_bytes(user.pinned_bytes);
    status.set_gpu_bytes(user.gpu_bytes);
  }
  for (const GpuSnapshot& gpu : snapshot.gpus) {
    v1::GpuStatus& status = *out.add_gpus();
    status.set_uuid(gpu.uuid);
    status.set_name(Utf8(gpu.name));
    status.set_arena_capacity_bytes(gpu.arena_capacity_bytes);
    status.set_arena_used_bytes(gpu.arena_used_bytes);
    status.set_copies(gpu.copies);
    status.set_copied_bytes(gpu.copied_bytes);
    status.set_peer_copied_bytes(gpu.peer_bytes);
    status.set_copy_seconds(Seconds(gpu.copy_ns));
    status.set_queue_seconds(Seconds(gpu.queue_ns));
    status.set_lingering_bytes(gpu.lingering_bytes());
    for (const QuarantinedMemory& piece : gpu.lingering) {
      v1::LingeringMemory& out_piece = *status.add_lingering();
      out_piece.set_backend(BackendName(piece.backend));
      out_piece.set_bytes(piece.bytes);
      out_piece.mutable_pids()->Add(piece.pids.begin(), piece.pids.end());
      out_piece.set_seconds(piece.seconds);
    }
  }
}

void FillDataset(const DatasetInfo& info, v1::ListDatasetsResponse::Dataset& out) {
  out.set_format(info.format);
  out.set_samples(info.samples);
  out.set_fingerprint(info.fingerprint);
  for (const Field& field : info.fields) {
    if (field.on_request) continue;
    v1::TensorPlace& place = *out.add_fields();
    place.set_name(Utf8(field.spec.name));
    // The decoder's output for an encoded image, whose size is known only then.
    const bool encoded = field.kind == FieldKind::kEncodedImage;
    std::vector<int64_t> shape = encoded ? std::vector<int64_t>{-1, -1, 3} : field.spec.shape;
    if (field.kind == FieldKind::kRagged) shape[0] = -1;
    place.set_dtype(static_cast<v1::DType>(encoded ? DType::kUint8 : field.spec.dtype));
    place.mutable_shape()->Add(shape.begin(), shape.end());
  }
  // Escapes backslashes too, so that no name looks like another's escaped form.
  for (const std::string& name : info.classes)
    out.add_classes(name.find('\\') == std::string::npos ? Utf8(name) : EscapeName(name));
}

}  // namespace pinfeed

// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/status_json.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/quote.h"

namespace pinfeed {
namespace {

using Json = nlohmann::json;

Json StallJson(const StallTimes& stall) {
  Json out = Json::object();
  for (size_t i = 0; i < kStallCauses; ++i) out[std::string(kStallCauseNames[i])] = Seconds(stall[i]);
  return out;
}

Json SessionJson(const SessionSnapshot& session) {
  return {{"id", session.id},
          {"pid", session.pid},
          {"uid", session.uid},
          {"client_name", EscapeUnprintable(session.client_name)},
          {"state", session.state},
          {"batches", session.batches_published},
          {"ready", session.slots_lent - session.slots_held},
          {"held", session.slots_held},
          {"lease_age_seconds", session.oldest_lease_seconds},
          {"stall_seconds", StallJson(session.stall_ns)}};
}

Json FeedJson(const FeedReport& report) {
  const FeedSnapshot& feed = report.feed;
  Json sessions = Json::array();
  for (const SessionSnapshot& session : report.sessions) sessions.push_back(SessionJson(session));
  const auto* const sharing = feed.sharing == Sharing::kExclusive   ? "exclusive"
                              : feed.sharing == Sharing::kBroadcast ? "broadcast"
                                                                    : "queue";
  return {{"id", feed.id},
          {"name", EscapeUnprintable(feed.name)},
          {"dataset_samples", feed.dataset_samples},
          {"batch_size", feed.batch_size},
          {"shuffled", feed.shuffled},
          {"sharing", sharing},
          {"memory", feed.on_device ? "gpu" : "host"},
          {"state", feed.state},
          {"error_code", feed.error.ok() ? "" : CodeName(feed.error.code())},
          {"epoch", feed.epoch},
          {"batch_index", feed.batch_index},
          {"slot_states", feed.slot_states},
          {"arena_bytes", feed.arena_bytes},
          {"batches", feed.batches},
          {"samples", feed.samples},
          {"bytes", feed.bytes},
          {"bad_samples", feed.bad_samples},
          {"running_seconds", Seconds(feed.running_ns)},
          {"stall_seconds", StallJson(feed.stall_ns)},
          {"sessions", std::move(sessions)}};
}

Json GpuJson(const GpuSnapshot& gpu) {
  return {{"uuid", gpu.uuid},
          {"name", EscapeUnprintable(gpu.name)},
          {"arena_capacity_bytes", gpu.arena_capacity_bytes},
          {"arena_used_bytes", gpu.arena_used_bytes},
          {"copies", gpu.copies},
          {"copied_bytes", gpu.copied_bytes},
          {"copy_seconds", Seconds(gpu.copy_ns)},
          {"copy_errors", gpu.copy_errors}};
}

// Every user who reaches the port can read this, so it contains no sample names and no details of operations.
Json HungJson(const HungThread& hung) {
  Json out = {{"thread", hung.thread}, {"seconds", std::chrono::duration<double>(hung.age).count()}};
  if (!hung.gpu.empty()) {
    out["gpu"] = hung.gpu;
  } else if (hung.operation.empty()) {
    out["feed"] = hung.feed;
    out["sample"] = hung.sample;
  }
  return out;
}

}  // namespace

std::string StatusJson(const DaemonSnapshot& snapshot, const std::string& version) {
  Json feeds = Json::array();
  for (const FeedReport& report : snapshot.feeds) feeds.push_back(FeedJson(report));
  Json gpus = Json::array();
  for (const GpuSnapshot& gpu : snapshot.gpus) gpus.push_back(GpuJson(gpu));
  Json hung = Json::array();
  for (const HungThread& thread : snapshot.hung) hung.push_back(HungJson(thread));
  const FeedTotals& totals = snapshot.totals;
  const uint64_t refusals = std::accumulate(snapshot.refusals.begin(), snapshot.refusals.end(), uint64_t{0});
  const auto* const ready = snapshot.ready ? "ready" : "not ready";
  const Json status = {
      {"version", version},
      {"daemon",
       std::to_string(snapshot.server_epoch)},  // differs after each start; too long for a JSON number
      {"state", snapshot.draining ? "draining" : ready},
      {"draining_seconds", snapshot.draining_seconds},
      {"uptime_seconds", snapshot.uptime_seconds},
      {"backend", snapshot.gpus.empty() ? "host" : "cuda"},
      {"workers", snapshot.workers},
      {"workers_busy", snapshot.workers_busy},
      {"hung", std::move(hung)},
      {"sessions_limit", snapshot.max_sessions},
      {"pool", {{"capacity_bytes", snapshot.pool_capacity_bytes}, {"used_bytes", snapshot.pool_used_bytes}}},
      {"totals",
       {{"batches", totals.batches},
        {"samples", totals.samples},
        {"bytes", totals.bytes},
        {"bad_samples", totals.bad_samples},
        {"sessions_opened", snapshot.sessions_opened},
        {"sessions_closed", snapshot.sessions_closed},
        {"refusals", refusals}}},
      {"stall_seconds", StallJson(totals.stall_ns)},
      {"feeds", std::move(feeds)},
      {"gpus", std::move(gpus)}};
  return status.dump() + "\n";
}

}  // namespace pinfeed

// SPDX-License-Identifier: Apache-2.0
// What the tests of metrics and status show.
#pragma once

#include <chrono>

#include "server/metrics/snapshot.h"

namespace pinfeed {

// A daemon with one of everything, named as nastily as can be.
inline DaemonSnapshot Full() {
  DaemonSnapshot snapshot;
  snapshot.version = "1.2.3";
  snapshot.ready = true;
  snapshot.server_epoch = UINT64_MAX;
  snapshot.admin_certificate_until_unix_seconds = 2'000'000'000;
  FeedReport report;
  report.feed.id = 3;
  report.feed.state = "failed";
  report.feed.dataset = "/secret/path";
  report.feed.name = "bad \xff</script>\n\"";
  report.feed.error = DataLoss("read /secret/path/file: no");
  report.feed.last_bad_samples = {{1, "read /secret/path/file: no"}};
  report.feed.slot_states = "fwrl";
  report.feed.dataset_samples = 1281167;
  report.feed.batch_size = 256;
  report.feed.shuffled = true;
  report.feed.requests.emplace();
  report.feed.requests->requests = 7;
  report.feed.requests->ends[0] = 5;
  report.feed.requests->latency.Add(3000);
  report.feed.requests->consumers = {{77, 2, 5, 4000}};
  report.feed.recent.emplace();
  report.feed.lent.Add(2000);
  SessionSnapshot session;
  session.id = 7;
  session.state = "attached";
  session.client_name = "</script><b>\xc3\x28\"\\";
  session.recent.emplace();
  session.slots_lent = 3;
  session.slots_held = 1;
  session.stall_ns = {1'000'000'000, 2'000'000'000, 5'000'000'000, 3'000'000'000, 4'000'000'000};
  report.sessions.push_back(session);
  session.id = 8;
  session.state = "orphaned";
  report.sessions.push_back(session);
  snapshot.feeds.push_back(report);
  snapshot.totals.lent.Add(2000);
  snapshot.hung = {{"worker1", std::chrono::seconds(130), "", 3, 12, "/secret/path/file"},
                   {"copy-0", std::chrono::seconds(121), "GPU-1", 0, 0, ""}};
  snapshot.users.push_back({1000, 2, 3, 4, 5});
  GpuSnapshot gpu;
  gpu.lingering.push_back({Backend::kCudaIpc, 4096, {1, 2}, 3});
  gpu.uuid = "GPU-1";
  gpu.name = "\xff";
  snapshot.gpus.push_back(gpu);
  return snapshot;
}

}  // namespace pinfeed

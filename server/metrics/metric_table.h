// SPDX-License-Identifier: Apache-2.0
// All metrics of the daemon: the table from which /metrics and docs/metrics.md are generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pinfeed {

enum class MetricKind : uint8_t { kGauge, kCounter, kHistogram };

// In the order of the table.
enum class Metric : uint8_t {
  kBuildInfo,
  kReady,
  kDraining,
  kDrainingSeconds,
  kReloadSuccessful,
  kReloadTimestamp,
  kAdminCertificateExpiry,
  kWorkers,
  kWorkersBusy,
  kWorkerChunks,
  kWorkerChunkAge,
  kSampleDuration,
  kBatchFill,
  kBatchLent,
  kBatches,
  kSamples,
  kBatchBytes,
  kBadSamples,
  kStall,
  kPoolCapacity,
  kPoolUsed,
  kPoolKept,
  kArenas,
  kFeeds,
  kFeedsOpened,
  kFeedFailures,
  kSessions,
  kSessionsLimit,
  kSessionsOpened,
  kSessionsClosed,
  kRefusals,
  kRefusedRequests,
  kFallbacks,
  kIgnoredReleases,
  kFeedInfo,
  kFeedSlots,
  kFeedArenaBytes,
  kFeedEpoch,
  kFeedBatches,
  kFeedSamples,
  kFeedBadSamples,
  kFeedRunning,
  kFeedStall,
  kSessionInfo,
  kSessionBatches,
  kSessionSlots,
  kSessionLeaseAge,
  kSessionStall,
  kUserSessions,
  kUserPool,
  kUserPinned,
  kUserGpu,
  kUserSessionsLimit,
  kUserPoolLimit,
  kUserPinnedLimit,
  kUserGpuLimit,
  kGpuArenaCapacity,
  kGpuArenaUsed,
  kGpuLingering,
  kGpuCopies,
  kGpuCopiedBytes,
  kGpuPeerCopiedBytes,
  kGpuCopySeconds,
  kGpuQueueSeconds,
  kGpuCopyDuration,
  kGpuCopyErrors,
  kGpuStalled,
  kProcessStart,
  kProcessCpu,
  kProcessResident,
  kProcessOpenFds,
  kProcessMaxFds,
};

struct MetricDefinition {
  Metric id;
  std::string_view name;
  MetricKind kind;
  std::string_view unit;
  std::string_view labels;  // names, separated by ", "; empty: one series
  std::string_view help;
};

// Invariant: MetricTable()[i].id is i.
std::span<const MetricDefinition> MetricTable();
std::string_view MetricKindName(MetricKind kind);
std::vector<std::string> LabelNames(const MetricDefinition& definition);

// The text of docs/metrics.md.
std::string MetricsPage();

}  // namespace pinfeed

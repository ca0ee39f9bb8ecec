// SPDX-License-Identifier: Apache-2.0
// Converts snapshots to messages.
#pragma once

#include "pinfeed/v1/feeder.pb.h"
#include "server/dataset/dataset.h"
#include "server/metrics/snapshot.h"

namespace pinfeed {

void FillStatus(const DaemonSnapshot& snapshot, v1::GetStatusResponse& out);
void FillDataset(const DatasetInfo& info, v1::ListDatasetsResponse::Dataset& out);

}  // namespace pinfeed

// SPDX-License-Identifier: Apache-2.0
// What a feed is made of.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/spec/feed_spec.h"
#include "server/loading/batch_producer.h"
#include "server/memory/arena.h"
#include "server/order/sampler.h"
#include "server/trace/tracer.h"

namespace pinfeed {

struct FeedParts {
  FeedSpec spec;  // whose decode is decided
  BatchLayout layout;
  Sampler sampler;
  std::unique_ptr<BatchProducer> producer;
  std::string decode_note = {};       // DecodeChoice::note
  uint32_t max_workers = UINT32_MAX;  // that may load for it at once
  std::string resident_note = {};     // why the samples are not resident, if the spec left that open
  // What every kind of feed has alike.
  uint64_t id = 0;
  uid_t owner = 0;           // the user of all its sessions
  Tracer* tracer = nullptr;  // outlives the feed; null: no tracing
  std::unique_ptr<Arena> arena = {};
};

}  // namespace pinfeed

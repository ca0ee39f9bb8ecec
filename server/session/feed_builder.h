// SPDX-License-Identifier: Apache-2.0
// Makes the feed that a client asks for. In: its arguments, the backend chosen for it, the dataset that the
// daemon reads. Out: the feed, with its memory.
#pragma once

#include <memory>
#include <string>

#include "server/session/open_feed.h"

namespace pinfeed {

// The backend for the batches. `fallback` says why it is not a better one, if the client requested the best.
struct BackendChoice {
  Backend backend;
  std::string fallback;
};

// Purpose: makes one feed, of any kind. Borrows: all it is given (outlive it). Threads: one; it waits for
// memory of feeds that have just ended, two seconds at most. Errors: those of OpenFeed; nothing is left
// behind then.
class FeedBuilder {
 public:
  FeedBuilder(const FeedOpener::Parts& parts, uid_t owner, const OpenFeedArguments& arguments,
              const BackendChoice& choice)
      : parts_(parts), owner_(owner), arguments_(arguments), spec_(arguments.spec), choice_(choice) {}

  // Its backend is the choice's, unless the client makes the batches on its GPU. `dataset` is the spec's, or
  // null if the daemon reads none.
  Result<std::unique_ptr<Feed>> Make(uint64_t id, std::shared_ptr<const Dataset> dataset);
  // Arena::PartOn of the feed's arena, for the client's GPU.
  Result<const Arena*> PartOf(Feed& feed) const;
  // Why the client cannot decode on its GPU; empty: it can.
  std::string WhyNoDecoder() const;
  // Why the client cannot have resident samples in any feed of this spec.
  Status CheckResident() const;

 private:
  // How many ranks of the feed's job share the workers of a feed that may decode on a GPU: at most one for
  // each GPU of this host; one if a group shares the feed.
  uint32_t RanksHere() const;
  // A feed of a dataset that the daemon reads.
  Result<std::unique_ptr<Feed>> MakeNativeFeed(std::shared_ptr<const Dataset> dataset) const;
  // A feed of resident samples. Null, with the reason in `note`, if the spec allows to do without and they
  // are not possible. `opened` has the fields of which `dataset` has the feed's.
  Result<std::unique_ptr<Feed>> MakeResidentFeed(const std::shared_ptr<const Dataset>& opened,
                                                 const std::shared_ptr<const Dataset>& dataset,
                                                 const Sampler& sampler, std::string* note) const;
  // Makes the samples of a feed resident, or shares those that are. An error says why that is not possible.
  Result<std::shared_ptr<ResidentData>> MakeResident(const ResidentPlan& plan,
                                                     const std::shared_ptr<const Dataset>& opened,
                                                     const std::shared_ptr<const Dataset>& dataset) const;
  // A feed that processes of its user fill.
  Result<std::unique_ptr<Feed>> MakeProducedFeed() const;
  // A feed of requests.
  Result<std::unique_ptr<Feed>> MakeBatcherFeed() const;
  // Adds what all feeds have, and the arena. `slots`: of the arena; 0: as many as suit the batches and the
  // memory.
  Result<std::unique_ptr<Feed>> MakeFeed(FeedParts parts, Backend backend, uint32_t slots) const;
  // Calls `make`, and once more if memory is lacking. In between it waits briefly for the memory of feeds
  // that have just ended. Of the client's GPU `bytes` are needed: there, idle resident samples are freed as
  // well, of other users only if these have what this user lacks.
  template <typename Make>
  auto WithMemory(Backend backend, uint64_t bytes, const Make& make) const {
    auto made = make();
    if (made.status().code() != Code::kResourceExhausted) return made;
    AwaitMemory(backend, bytes, made.status());
    return make();
  }
  void AwaitMemory(Backend backend, uint64_t bytes, const Status& lack) const;

  const FeedOpener::Parts& parts_;
  const uid_t owner_;
  const OpenFeedArguments& arguments_;
  const FeedSpec& spec_;
  const BackendChoice& choice_;
  uint64_t id_ = 0;  // of the feed, once Make is called
};

}  // namespace pinfeed

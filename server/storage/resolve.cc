// SPDX-License-Identifier: Apache-2.0
// Chooses the storage by the form of a user's path or URI.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/storage/local_file.h"
#include "server/storage/storage.h"

namespace pinfeed {

Result<std::shared_ptr<const Location>> ResolveLocation(std::string_view uri,
                                                        const std::vector<std::string>& allowed_roots,
                                                        PathLinks links) {
  ASSIGN_OR_RETURN(LocalPath path, LocalPath::Resolve(uri, allowed_roots));
  if (links == PathLinks::kFollowedOnce) path.FollowLinks();
  return std::make_shared<const LocalPath>(std::move(path));
}

}  // namespace pinfeed

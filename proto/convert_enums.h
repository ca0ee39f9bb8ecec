// SPDX-License-Identifier: Apache-2.0
// The enums of a FeedSpec: which value of the wire is which of the core's.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

#include "common/spec/feed_spec.h"
#include "pinfeed/v1/feeder.pb.h"

namespace pinfeed {

inline constexpr std::pair<v1::FeedSpec::Order, Order> kOrders[] = {
    {v1::FeedSpec::SEQUENTIAL, Order::kSequential}, {v1::FeedSpec::SHUFFLE, Order::kShuffle}};
inline constexpr std::pair<v1::FeedSpec::ImageLayout, ImageLayout> kImageLayouts[] = {
    {v1::FeedSpec::CHW, ImageLayout::kChw}, {v1::FeedSpec::HWC, ImageLayout::kHwc}};
inline constexpr std::pair<v1::FeedSpec::OnBadSample, OnBadSample> kBadSampleRules[] = {
    {v1::FeedSpec::FAIL, OnBadSample::kFail},
    {v1::FeedSpec::SKIP, OnBadSample::kSkip},
    {v1::FeedSpec::ZERO, OnBadSample::kZero}};
inline constexpr std::pair<v1::FeedSpec::Sharing, Sharing> kSharings[] = {
    {v1::FeedSpec::EXCLUSIVE, Sharing::kExclusive},
    {v1::FeedSpec::BROADCAST, Sharing::kBroadcast},
    {v1::FeedSpec::QUEUE, Sharing::kQueue}};
inline constexpr std::pair<v1::FeedSpec::Backend, Backend> kBackends[] = {
    {v1::FeedSpec::AUTO, Backend::kAuto},
    {v1::FeedSpec::HOST, Backend::kHost},
    {v1::FeedSpec::CUDA_IPC, Backend::kCudaIpc},
    {v1::FeedSpec::VMM_FD, Backend::kVmmFd}};
inline constexpr std::pair<v1::FeedSpec::Decode, Decode> kDecodes[] = {
    {v1::FeedSpec::DECODE_CPU, Decode::kCpu},
    {v1::FeedSpec::DECODE_GPU, Decode::kGpu},
    {v1::FeedSpec::DECODE_AUTO, Decode::kAuto}};
inline constexpr std::pair<v1::FeedSpec::Resident, Resident> kResidents[] = {
    {v1::FeedSpec::RESIDENT_OFF, Resident::kOff},
    {v1::FeedSpec::RESIDENT_ON, Resident::kOn},
    {v1::FeedSpec::RESIDENT_AUTO, Resident::kAuto}};

// Each value of the wire, except 0 for unset, has its place in a table.
static_assert(std::size(kOrders) == v1::FeedSpec::Order_ARRAYSIZE - 1 &&
              std::size(kImageLayouts) == v1::FeedSpec::ImageLayout_ARRAYSIZE - 1 &&
              std::size(kBadSampleRules) == v1::FeedSpec::OnBadSample_ARRAYSIZE - 1 &&
              std::size(kSharings) == v1::FeedSpec::Sharing_ARRAYSIZE - 1 &&
              std::size(kBackends) == v1::FeedSpec::Backend_ARRAYSIZE - 1 &&
              std::size(kDecodes) == v1::FeedSpec::Decode_ARRAYSIZE - 1 &&
              std::size(kResidents) == v1::FeedSpec::Resident_ARRAYSIZE - 1);

// Nothing when it is unset or not known.
template <typename Wire, typename Core, size_t kCount>
std::optional<Core> EnumFromProto(Wire in, const std::pair<Wire, Core> (&values)[kCount]) {
  for (const auto& [wire, core] : values)
    if (wire == in) return core;
  return std::nullopt;
}

template <typename Wire, typename Core, size_t kCount>
Wire EnumToProto(Core in, const std::pair<Wire, Core> (&values)[kCount]) {
  for (const auto& [wire, core] : values)
    if (core == in) return wire;
  return Wire{};
}

}  // namespace pinfeed

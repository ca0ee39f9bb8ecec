// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/selected_fields.h"

#include "tests/unit/dataset/npy_file.h"
#include "tests/unit/dataset/open_local.h"

namespace pinfeed {
namespace {

class SelectedFieldsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* const name : {"a", "b", "c"})
      dir_.Write("set/" + std::string(name) + ".npy", NpyHeaderBytes("|u1", "(2,)", false) + name + name);
    ASSERT_OK_AND_ASSIGN(whole_, OpenLocal(dir_, "set", "npy"));
  }

  TempDir dir_;
  std::shared_ptr<const Dataset> whole_;
};

TEST_F(SelectedFieldsTest, GivesTheFieldsInTheOrderTheyWereAskedFor) {
  ASSERT_OK_AND_ASSIGN(const auto selected, SelectFields(whole_, {"c", "a"}));
  const DatasetInfo& info = selected->info();
  ASSERT_EQ(info.fields.size(), 2U);
  EXPECT_EQ(info.fields[0].spec.name, "c");
  EXPECT_EQ(info.fields[1].spec.name, "a");
  EXPECT_EQ(info.samples, 2U);
  EXPECT_EQ(info.fingerprint, whole_->info().fingerprint);
  for (const size_t field : {0, 1}) {
    std::vector<std::byte> value(1);
    ASSERT_OK(selected->ReadTensor(1, field, value));
    EXPECT_EQ(static_cast<char>(value[0]), "ca"[field]);
  }
  EXPECT_EQ(selected->Describe(1), whole_->Describe(1));
}

TEST_F(SelectedFieldsTest, NoNamesAreAllFields) {
  ASSERT_OK_AND_ASSIGN(const auto selected, SelectFields(whole_, {}));
  EXPECT_EQ(selected, whole_);
}

TEST_F(SelectedFieldsTest, ThereIsNoPathOfSamplesThatAreNoFiles) {
  EXPECT_THAT(SelectFields(whole_, {}, true),
              StatusIs(Code::kInvalidArgument, HasSubstr("sample_ids tells which they are")));
}

TEST_F(SelectedFieldsTest, RefusesAFieldThatIsNotThere) {
  EXPECT_THAT(SelectFields(whole_, {"a", "label"}),
              StatusIs(Code::kInvalidArgument,
                       HasSubstr("fields: the dataset 'as named' has no field 'label', only a, b, c")));
}

}  // namespace
}  // namespace pinfeed

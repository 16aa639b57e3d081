// SPDX-License-Identifier: Apache-2.0
#include "rules/price_table.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace telltale::rules {
namespace {

constexpr double kGiB = 1073741824;

TEST(PriceTableTest, ATableIsReadWithItsUnits) {
  const auto table = PriceTableFromToml(R"(
currency = "EUR"
[[machine]]
name = "plain"
price_per_hour = 0.4
cores = 8
memory_gib = 32
current = true
[[machine]]
name = "gpu"
price_per_hour = 4
cores = 16
memory_gib = 64
gpus = 2
gpu = "L4"
gpu_memory_gib = 24
gpu_speed = 121
core_speed = 1.2
disk_mb_s = 500
network_gbit_s = 10
)",
                                        "prices.toml");
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table->currency, "EUR");
  ASSERT_EQ(table->machines.size(), 2U);
  const MachinePrice& plain = table->machines[0];
  EXPECT_EQ(plain.name, "plain");
  EXPECT_DOUBLE_EQ(plain.memory_bytes, 32 * kGiB);
  EXPECT_TRUE(plain.current);
  EXPECT_DOUBLE_EQ(plain.core_speed, 1);
  EXPECT_DOUBLE_EQ(plain.gpus, 0);
  const MachinePrice& gpu = table->machines[1];
  EXPECT_EQ(gpu.gpu, "L4");
  EXPECT_DOUBLE_EQ(gpu.gpu_memory_bytes, 24 * kGiB);
  EXPECT_DOUBLE_EQ(gpu.disk_bytes_per_second, 5e8);
  EXPECT_DOUBLE_EQ(gpu.network_bytes_per_second, 1.25e9);
}

TEST(PriceTableTest, WhatIsWrongIsSaidWithItsLine) {
  const auto wrong = [](const std::string& text) {
    const auto table = PriceTableFromToml(text, "prices.toml");
    EXPECT_EQ(table.status().code(), Code::kUsage) << text;
    return table.status().message();
  };
  const std::string good =
      "[[machine]]\nname = \"a\"\nprice_per_hour = 1\ncores = 2\nmemory_gib = 4\n";
  EXPECT_TRUE(PriceTableFromToml(good, "prices.toml").ok());
  EXPECT_NE(wrong("").find("no machine"), std::string::npos);
  EXPECT_NE(wrong("machine = 3\n").find("[[machine]]"), std::string::npos);
  EXPECT_NE(wrong("machines = 3\n").find("machines"), std::string::npos);
  EXPECT_EQ(wrong(good + "core = 3\n").rfind("prices.toml:6: machine.0.core", 0), 0U);
  EXPECT_NE(wrong(good + good).find("name of another"), std::string::npos);
  EXPECT_NE(wrong("[[machine]]\nname = \"a\"\ncores = 2\nmemory_gib = 4\n").find("price_per_hour"),
            std::string::npos);
  EXPECT_NE(wrong("[[machine]]\nname = \"a\"\nprice_per_hour = 0\ncores = 2\nmemory_gib = 4\n")
                .find("above 0"),
            std::string::npos);
  EXPECT_NE(wrong(good + "gpus = nan\n").find("gpus"), std::string::npos);
  EXPECT_NE(wrong(good + "core_speed = 0\n").find("core_speed"), std::string::npos);
}

TEST(PriceTableTest, AParameterIsATableOrAPath) {
  EXPECT_TRUE(LoadPriceTable("machine=[{name='a',cores=2,memory_gib=4,price_per_hour=1}]").ok());
  EXPECT_EQ(LoadPriceTable("/nowhere/prices.toml").status().code(), Code::kUnusable);
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / "telltale_price_table_test.toml";
  std::ofstream(file) << "[[machine]]\nname = \"a\"\nprice_per_hour = 1\ncores = 2\n"
                         "memory_gib = 4\n";
  const auto table = LoadPriceTable(file.string());
  std::filesystem::remove(file);
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table->machines.size(), 1U);
}

}  // namespace
}  // namespace telltale::rules

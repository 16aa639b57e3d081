// SPDX-License-Identifier: Apache-2.0
// Style of the report: the tokens of the user interface, light and dark, and print.
#pragma once
#include <string_view>

namespace telltale::report {

inline constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;
--sans:"Inter",-apple-system,BlinkMacSystemFont,"Segoe UI",Roboto,"Noto Sans","Lato","Liberation Sans",Arial,sans-serif;
--mono:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace;
--bg:#fff;--sunk:#f6f7f7;--line:#e3e6e8;--ink:#15191d;--ink-2:#434b53;--ink-3:#626b74;--accent:#0b5cad;
--bad:#b3261e;--warn:#8a5200;--good:#0b6b57;
--p-data:#c05309;--p-comm:#dba823;--p-fwd:#0b4f9a;--p-bwd:#4a95d4;--p-opt:#0c7f6b;--p-other:#9aa2a9;
--c0:#f3f5f7;--c1:#c3dbef;--c2:#6ea9d8;--c3:#1c6bb0;--c4:#08335c;--on:#fff;--on2:#10151a;--fl:84%}
@media screen and (prefers-color-scheme:dark){:root{
--bg:#14181b;--sunk:#1a1f23;--line:#2a3137;--ink:#e9ecee;--ink-2:#bcc4ca;--ink-3:#919ba4;--accent:#6cb2f0;
--bad:#ff8a7d;--warn:#f0b35a;--good:#5cc9ae;
--p-data:#ec7f30;--p-comm:#f0d27a;--p-fwd:#3f8fd8;--p-bwd:#9acdf3;--p-opt:#2fae94;--p-other:#6b757e;
--c0:#1b2126;--c1:#1d4468;--c2:#2f7ab8;--c3:#79b9ea;--c4:#e3f2ff;--on:#10151a;--on2:#10151a;--fl:27%}}
*{box-sizing:border-box}
html{background:var(--bg);color:var(--ink);font:13px/20px var(--sans);font-variant-numeric:tabular-nums}
body{margin:0}
main{max-width:880px;margin:0 auto;padding:36px 32px 60px}
h1,h2,h3,p,dl,dd{margin:0}
h1{font-size:26px;line-height:34px;font-weight:600;letter-spacing:-.015em;margin:22px 0 8px;overflow-wrap:anywhere}
h2{font-size:15px;line-height:20px;font-weight:600;margin:30px 0 8px;padding-top:10px;border-top:1px solid var(--ink)}
h3{font-size:13px;font-weight:600}
h3 small{font-weight:400;color:var(--ink-3);font-size:12px}
b{font-weight:600}
.lead{font-size:15px;line-height:22px;color:var(--ink-2)}.lead b{color:var(--ink)}
.top{display:flex;align-items:center;gap:12px;flex-wrap:wrap}
.logo{display:flex;align-items:center;gap:8px;font-weight:600;font-size:14px}
.top .q{margin-left:auto;font-size:12px}
.m{color:var(--ink-2)}.q{color:var(--ink-3)}.s{font-size:12px;line-height:18px}.xs{font-size:11px;line-height:16px}
.r{text-align:right}
.bad{color:var(--bad)}.warn{color:var(--warn)}.good{color:var(--good)}
svg{display:block;max-width:100%;height:auto;overflow:visible}
svg text{font:11px var(--sans);fill:var(--ink-3);font-variant-numeric:tabular-nums}
svg text.i{fill:var(--ink)}svg text.i2{fill:var(--ink-2)}svg text.on{fill:var(--on)}svg text.on2{fill:var(--on2)}
.f{display:grid;grid-template-columns:84px minmax(0,1fr) 96px;gap:4px 16px;padding:9px 0;border-top:1px solid var(--line);break-inside:avoid}
.f p{overflow-wrap:anywhere}
.sev{display:inline-flex;align-items:center;gap:6px;font-size:12px}
.next::before{content:"→ ";color:var(--ink-3)}
details{font-size:12px;color:var(--ink-3)}summary{cursor:pointer;min-height:24px}
dl.d{display:grid;grid-template-columns:120px minmax(0,1fr) 120px minmax(0,1fr);gap:3px 12px;font-size:12px;line-height:18px}
dl.d dt{color:var(--ink-3)}dl.d dd{overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;font-size:12px}
th{font-size:11px;line-height:16px;color:var(--ink-3);font-weight:400;text-align:left;padding:0 10px 5px 0;border-bottom:1px solid var(--line);white-space:nowrap;vertical-align:bottom}
td{padding:2px 10px 2px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th.r,td.r{text-align:right;padding-left:10px;padding-right:0;white-space:nowrap}
td.mono,code{font-family:var(--mono);font-size:12px}
.key{display:flex;flex-wrap:wrap;gap:4px 16px;margin:8px 0 0 150px;font-size:11px;color:var(--ink-2)}
.key.n{margin-left:0}
.key i{display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:5px}
.two{display:grid;grid-template-columns:1fr 1fr;gap:16px 32px}
.n{white-space:nowrap}
a{color:var(--accent)}
.skip:not(:focus){position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.fg{position:relative;font-size:11px;line-height:18px}.fg>p{min-height:38px}
.fn{display:flex;flex-direction:column;min-width:0}.fk{display:flex}
.fn>a{scroll-margin-top:40vh;height:19px;overflow:hidden;white-space:nowrap;text-indent:3px;color:var(--ink);text-decoration:none;
background:hsl(var(--h) 55% var(--fl));border:0 solid var(--bg);border-width:0 1px 1px 0}
.fn>a:focus-visible{outline:2px solid var(--accent);outline-offset:-2px}
.fn>a:hover::after,.fn>a:focus-visible::after{content:attr(title);position:absolute;top:0;left:0;right:0;height:36px;
overflow:hidden;white-space:normal;overflow-wrap:anywhere;text-indent:0;background:var(--bg);pointer-events:none}
.fg:has(:target) .fn:not(:has(:target),:has(>a:target) .fn),.fg:has(:target) i:not(:has(>a:target) i){display:none}
.fn:has(:target)>a:not(:target){opacity:.6}
.bar{display:block;width:90px;height:6px;background:var(--line)}.bar i{display:block;height:6px;background:var(--ink-3)}
.gap{margin-top:14px}
section{break-inside:avoid}
@media screen and (max-width:720px){main{padding:20px 16px}.two,dl.d{grid-template-columns:1fr}dl.d{gap:0}dl.d dd{margin-bottom:4px}
.f{grid-template-columns:1fr}.f>.r{text-align:left}.key{margin-left:0}table{display:block;overflow-x:auto}}
@page{margin:14mm}
@media print{main{padding:0;max-width:none}.bar,.bar i,.key i,.fn>a{print-color-adjust:exact;-webkit-print-color-adjust:exact}
section{break-inside:auto}h2,h3,thead,summary{break-after:avoid}tr,svg,.gap,dl.d{break-inside:avoid}
details::details-content{content-visibility:visible;display:block;block-size:auto}summary{list-style:none}}
)css";

}  // namespace telltale::report

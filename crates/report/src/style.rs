//! The one style sheet: of pages, and of pictures wherever they are.
//!
//! Light or dark as the reader has it. Series have the colours of Okabe and Ito, which
//! colour-blind people can tell apart.

/// Of pictures. Plain first, then what is different for readers with a dark screen; without
/// variables, which not every viewer of SVG files knows.
pub(crate) const PICTURE_STYLE: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif;fill:#1b1f24}\
.title{font-size:16px;font-weight:600}.pale{fill:#57606a}.small{font-size:11px}\
.paper{fill:#ffffff}.band{fill:#f3f4f6}.box{fill:#ffffff;stroke:#57606a}.empty{fill:#d8dee4}\
.grid{stroke:#e1e4e8;fill:none}.axis{stroke:#57606a;fill:none}\
.way,.series{stroke-width:2;fill:none}.mark{stroke:#57606a;stroke-width:2;stroke-dasharray:5 4}\
.f0{fill:#0072b2}.f1{fill:#e69f00}.f2{fill:#009e73}\
.f3{fill:#d55e00}.f4{fill:#cc79a7}.f5{fill:#56b4e9}\
.s0{stroke:#0072b2}.s1{stroke:#e69f00}.s2{stroke:#009e73}\
.s3{stroke:#d55e00}.s4{stroke:#cc79a7}.s5{stroke:#56b4e9}\
text.on0,text.on2,text.on3{fill:#ffffff}text.on1,text.on4,text.on5{fill:#1b1f24}\
@media(prefers-color-scheme:dark){\
text{fill:#e6edf3}.pale{fill:#9198a1}.paper{fill:#0d1117}.band{fill:#161b22}\
.box{fill:#0d1117;stroke:#9198a1}.empty{fill:#30363d}.grid{stroke:#262c36}.axis{stroke:#9198a1}\
.mark{stroke:#9198a1}\
.f0{fill:#3d9be0}.f2{fill:#2bb98f}.f3{fill:#ef7f3c}.f4{fill:#d99bbd}\
.s0{stroke:#3d9be0}.s2{stroke:#2bb98f}.s3{stroke:#ef7f3c}.s4{stroke:#d99bbd}\
text.on0,text.on1,text.on2,text.on3,text.on4,text.on5{fill:#0d1117}}";

/// Of pages, around their pictures.
pub(crate) const PAGE_STYLE: &str = "\
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --soft: #57606a; \
--line: #e1e4e8; }
@media (prefers-color-scheme: dark) { \
:root { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --line: #262c36; } }
body { background: var(--paper); color: var(--ink); margin: 2rem auto; padding: 0 1rem; \
max-width: 60rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 3rem; }
p { max-width: 46rem; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.2rem 0.7rem; border-bottom: 1px solid var(--line); \
white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } .right { text-align: right; }
.facts th { vertical-align: top; } .facts td { white-space: normal; overflow-wrap: anywhere; }
svg { display: block; max-width: 100%; height: auto; margin: 1rem 0; }
summary { cursor: pointer; color: var(--soft); }
";

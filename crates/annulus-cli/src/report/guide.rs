//! The section "How to read this": the meaning of every chart and number of the page.

use maud::{Markup, html};

use super::model::Comparison;

/// Returns the section.
pub(super) fn guide(comparisons: &[Comparison]) -> Markup {
    let network = comparisons[0].kind == "net";
    html! {
        section.guide aria-labelledby="guide" {
            h2 id="guide" { "How to read this" }
            @if network { (network_section()) } @else { (file_section()) }
            (chart_section())
            h3 { "When to doubt it" }
            p {
                "Read the warnings first. If repeats differ by more than 20 %, they cannot distinguish variants that differ "
                "by less. On a virtual machine, other guests share the processors and the disk: compare variants within "
                "one run, where they alternate, and repeat more often."
            }
        }
    }
}

fn file_section() -> Markup {
    html! {
        h3 { "The table" }
        p {
            "Medians over the repeats. Variants run in a shuffled order. Ratios are taken within one repeat, between "
            "runs of the same minute. The table has the median of these ratios, which can differ from the quotient "
            "of two numbers of the table. The base is the fastest ring written by hand. A ratio whose extremes lie on "
            "both sides of 1 is level. Baselines are the alternatives that programs use. " code { "null" }
            " does no I/O: its row is the cost of the harness, and a variant close to it was not measured well."
        }
        p {
            "The length of every result is checked, and the content in files that the tool created. In other files, one "
            "result in 64 is compared with a plain read afterwards. A run with a wrong result has no row."
        }
    }
}

fn network_section() -> Markup {
    html! {
        h3 { "The table" }
        p {
            "Medians over the valid repeats. Servers run in a shuffled order, and each is restarted for each run. Ratios "
            "are to the epoll server in the same repeat, and to nginx for HTTP. Check the limit: if the client had no "
            "CPU time left, the server could have done more."
        }
        p {
            "Every response is checked. Every request completes or is counted as an error. A run with an error, or with "
            "a missing connection at the end, is invalid. Without " code { "--rate" } ", a connection waits for each "
            "response before it sends the next request. A server that stalls for a second then delays one request "
            "per connection, and other requests are never sent. With " code { "--rate" } ", latency counts from the "
            "due time of a request, and a stall affects every request that was due: a slope in the heat map."
        }
    }
}

fn chart_section() -> Markup {
    html! {
        h3 { "Heat maps" }
        p {
            "A column is a slice of time, and a row a range of latencies on a logarithmic scale. Brighter means more "
            "operations per second, also on a logarithmic scale, so that a single slow operation is visible. A bright "
            "band is where most operations are. Two bands have two causes, such as cached and uncached reads, or two "
            "processors. A vertical stripe is a moment when all operations were slow. In an empty column, no operation "
            "completed. All maps have the same scale."
        }
        h3 { "Over time" }
        p {
            "Speed in each slice of the same repeat. A line that falls or has a step shows that the machine changed "
            "during the run. Enters per operation show how many operations share a call into the kernel: at 1 each "
            "has its own call, at 0.1 ten share one. They are shown for variants that report their calls."
        }
        h3 { "Percentiles" }
        p {
            "Lower is better. Where lines cross, one variant is mostly faster and sometimes slower. The right end rests "
            "on few operations: a line ends where less than one operation would remain."
        }
    }
}

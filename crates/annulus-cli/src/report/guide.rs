//! "How to read this": what every picture and number of the page means.

use maud::{Markup, html};

use super::model::Comparison;

/// The section.
pub(super) fn guide(comparisons: &[Comparison]) -> Markup {
    let network = comparisons[0].kind == "net";
    html! {
        section.guide aria-labelledby="guide" {
            h2 id="guide" { "How to read this" }
            @if network { (network_section()) } @else { (file_section()) }
            (chart_section())
            h3 { "When to doubt it" }
            p {
                "Read the warnings first. Repeats that differ by more than 20 % can't tell two variants apart that "
                "differ by less. On a virtual machine others may have used the same processors and the same disk: "
                "compare what was measured in one run, where variants took turns, and repeat more often."
            }
        }
    }
}

fn file_section() -> Markup {
    html! {
        h3 { "The table" }
        p {
            "Medians over the repeats. Variants took turns in a shuffled "
            "order. Ratios are taken inside one repeat, "
            "between runs of the same minute, and the median of these is "
            "shown: it need not be the quotient of two numbers "
            "of the table. The base is the fastest ring written by hand: level with it says that the library "
            "costs nothing. A ratio whose extremes lie on both sides of 1 is level. "
            "Baselines are what a program would use instead. " code { "null" } " does no I/O at all: "
            "what it shows is the harness itself, and a variant that comes near it was measured badly."
        }
        p {
            "Every answer is checked for its length, and in files that the "
            "tool made for its content; of other files one "
            "answer in 64 is compared with a plain read afterwards. A run with a wrong answer has no row."
        }
    }
}

fn network_section() -> Markup {
    html! {
        h3 { "The table" }
        p {
            "Medians over the good repeats. Servers took turns in a "
            "shuffled order, each started anew for each of its "
            "runs. Ratios are to the epoll server, of HTTP to nginx, in the same repeat. Look "
            "at who was the limit: where the client had no "
            "time left, the server could have done more."
        }
        p {
            "Every answer is checked, and every request is answered or counted "
            "as an error; a run with an error, or with a "
            "connection missing at the end, is void. Without " code { "--rate" "
            "} " a connection waits for its answer before "
            "it asks again, so a server that stops for a second delays one "
            "request per connection, and those that would "
            "have come meanwhile are never sent. With " code { "--rate" } " "
            "latency counts from when a request was due, and "
            "a pause is seen by every request that was due in it, a slope in the heat map."
        }
    }
}

fn chart_section() -> Markup {
    html! {
        h3 { "Heat maps" }
        p {
            "A column is a slice of time, a row a range of latencies; each "
            "power of ten has about as much room as the next. "
            "Brighter means more answers a second, on a logarithmic scale, so "
            "that a single slow answer can still be seen. "
            "A bright band is where most answers are. Two bands are two ways to be answered: cached and not, on this "
            "processor and on another. A vertical stripe is a moment when everything was slow. An empty column is a "
            "moment without an answer. All maps have the same scale: what looks slower is slower."
        }
        h3 { "Over time" }
        p {
            "Speed in each slice of the same repeat: a line that falls, or "
            "that steps, belongs to a machine that changed "
            "while it was measured. Enters per operation say how many "
            "operations share a call into the kernel: 1 is a call "
            "each, 0.1 is ten at once. They are counted where the variant knows when it made them."
        }
        h3 { "Percentiles" }
        p {
            "Lower is better. Where lines cross, one variant is faster "
            "mostly and slower at times. The right end rests "
            "on few answers: a line ends where fewer than one answer would be left."
        }
    }
}

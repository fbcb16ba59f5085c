//! Where the layers of a model are: tiers as columns, nodes as boxes, and the way through them.

use super::svg::{COLOURS, Svg, TEXT_SIZE, TextAnchor, fit_text, text_width};

/// How wide a box is, and how much is between two columns: room for what a hop takes.
const BOX: (f64, f64) = (220.0, 110.0);

/// How much is between two boxes of a column.
const GAP: f64 = 26.0;

/// Where the columns begin.
const TOP: f64 = 96.0;

/// How high the first line of a box is.
const HEAD: f64 = 20.0;

/// How high each further line of a box is.
const LINE: f64 = 16.0;

/// A placement.
pub struct PlacementDiagram {
    /// What it shows.
    pub title: String,
    /// The models, each with a colour of its own.
    pub models: Vec<String>,
    /// The tiers, from where inputs come from on.
    pub tiers: Vec<TierColumn>,
    /// What is sent from node to node.
    pub hops: Vec<HopArrow>,
}

/// Nodes beside each other.
pub struct TierColumn {
    /// What it is called.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<NodeBox>,
}

/// A node.
pub struct NodeBox {
    /// Its name.
    pub name: String,
    /// Whether inputs come from here.
    pub input: bool,
    /// Share of its memory that is used, where it has a limit.
    pub used: Option<f64>,
    /// What is said about its memory.
    pub memory: String,
    /// What runs here: which model, and which layers of it.
    pub runs: Vec<(usize, String)>,
}

/// A transfer.
pub struct HopArrow {
    /// Which model's it is.
    pub model: usize,
    /// From which node, by name.
    pub from: String,
    /// To which node.
    pub to: String,
    /// What it takes.
    pub label: String,
}

/// Where a box is.
struct BoxPlace<'a> {
    name: &'a str,
    tier: usize,
    corner: (f64, f64),
    height: f64,
}

impl PlacementDiagram {
    /// The placement as a picture.
    pub fn to_svg(&self) -> String {
        let (box_width, between) = BOX;
        let columns = self.tiers.len().max(1) as f64;
        // A hop inside of a column goes around its boxes.
        let width = (columns * (box_width + between) + 40.0).max(480.0);
        let mut picture = Svg::new(&self.title, width, 0.0);
        if self.models.len() > 1 {
            let names = self.models.iter().enumerate();
            let entries: Vec<(String, String)> =
                names.map(|(at, name)| (format!("f{}", at % COLOURS), name.clone())).collect();
            picture.draw_legend(54.0, &entries);
        }
        let places = self.box_places();
        let ends = places.iter().map(|place| place.corner.1 + place.height);
        let bottom = ends.fold(TOP + 60.0, f64::max) + 20.0;
        for (number, tier) in self.tiers.iter().enumerate() {
            let x = column_left(number);
            let size = (box_width + 24.0, bottom - TOP + 36.0);
            picture.rect((x - 12.0, TOP - 26.0), size, "band", "");
            picture.text(
                x,
                TOP - 8.0,
                TextAnchor::Start,
                "pale",
                &fit_text(&tier.name, box_width, TEXT_SIZE),
            );
        }
        let find = |name: &str| places.iter().find(|place| place.name == name);
        let ways = self.hops.iter().enumerate().filter_map(|(number, hop)| {
            Some((ArrowPath::new(find(&hop.from)?, find(&hop.to)?, number), hop))
        });
        let ways: Vec<(ArrowPath, &HopArrow)> = ways.collect();
        // Behind the boxes: a way may pass a tier.
        for (way, hop) in &ways {
            picture.path(&way.points, &format!("way s{}", hop.model % COLOURS), "");
        }
        for (place, node) in places.iter().zip(self.nodes()) {
            draw_node(&mut picture, place, node);
        }
        for (way, hop) in &ways {
            way.draw_ends(&mut picture, hop);
        }
        picture.set_height(bottom + 30.0);
        picture.finish_svg()
    }

    fn nodes(&self) -> impl Iterator<Item = &NodeBox> {
        self.tiers.iter().flat_map(|tier| &tier.nodes)
    }

    fn box_places(&self) -> Vec<BoxPlace<'_>> {
        let mut places = Vec::new();
        for (tier, described) in self.tiers.iter().enumerate() {
            let mut y = TOP;
            for node in &described.nodes {
                let height = HEAD + LINE * (node.runs.len() + 1) as f64 + 20.0;
                places.push(BoxPlace {
                    name: &node.name,
                    tier,
                    corner: (column_left(tier), y),
                    height,
                });
                y += height + GAP;
            }
        }
        places
    }
}

/// Where a tier's boxes begin.
fn column_left(tier: usize) -> f64 {
    32.0 + tier as f64 * (BOX.0 + BOX.1)
}

fn draw_node(picture: &mut Svg, place: &BoxPlace<'_>, node: &NodeBox) {
    let (x, y) = place.corner;
    picture.rect(place.corner, (BOX.0, place.height), "box", "");
    let name = if node.input { format!("{} (input)", node.name) } else { node.name.clone() };
    picture.text(
        x + 10.0,
        y + HEAD,
        TextAnchor::Start,
        "",
        &fit_text(&name, BOX.0 - 20.0, TEXT_SIZE),
    );
    let mut line = y + HEAD;
    for (model, layers) in &node.runs {
        line += LINE;
        picture.rect((x + 10.0, line - 9.0), (8.0, 8.0), &format!("f{}", model % COLOURS), "");
        picture.text(
            x + 24.0,
            line,
            TextAnchor::Start,
            "small",
            &fit_text(layers, BOX.0 - 34.0, 11.0),
        );
    }
    line += LINE;
    picture.text(
        x + 10.0,
        line,
        TextAnchor::Start,
        "pale small",
        &fit_text(&node.memory, BOX.0 - 20.0, 11.0),
    );
    if let Some(used) = node.used.filter(|used| used.is_finite()) {
        let (bar, width) = ((x + 10.0, line + 7.0), BOX.0 - 20.0);
        picture.rect(bar, (width, 6.0), "empty", &node.memory);
        picture.rect(bar, (width * used.clamp(0.0, 1.0), 6.0), "f5", &node.memory);
    }
}

/// An arrow from box to box.
struct ArrowPath {
    points: [(f64, f64); 4],
    tip: [(f64, f64); 3],
    label: (f64, f64),
}

impl ArrowPath {
    /// The way between two boxes; neighbours in the list of hops lie beside each other.
    fn new(from: &BoxPlace<'_>, to: &BoxPlace<'_>, number: usize) -> Self {
        let aside = (number % 4) as f64 * 9.0;
        let middle =
            |place: &BoxPlace<'_>| place.corner.1 + place.height.min(80.0) / 2.0 + aside - 14.0;
        let (start, end) = (middle(from), middle(to));
        let right = from.corner.0 + BOX.0;
        if from.tier == to.tier {
            let around = right + 22.0 + aside;
            Self {
                points: [(right, start), (around, start), (around, end), (right + 7.0, end)],
                tip: [(right, end), (right + 9.0, end - 5.0), (right + 9.0, end + 5.0)],
                label: (around + 6.0, (start + end) / 2.0 + 4.0),
            }
        } else {
            let left = to.corner.0;
            let turn = left - 26.0 - aside;
            Self {
                points: [(right, start), (turn, start), (turn, end), (left - 7.0, end)],
                tip: [(left, end), (left - 9.0, end - 5.0), (left - 9.0, end + 5.0)],
                label: (right + 16.0, start - 5.0),
            }
        }
    }

    /// The tip of the arrow, and what the hop takes.
    fn draw_ends(&self, picture: &mut Svg, hop: &HopArrow) {
        picture.polygon(&self.tip, &format!("f{}", hop.model % COLOURS));
        let (x, y) = self.label;
        let width = text_width(&hop.label, 11.0);
        picture.rect((x - 2.0, y - 10.0), (width + 4.0, 13.0), "paper", "");
        picture.text(x, y, TextAnchor::Start, "small", &hop.label);
    }
}

#[cfg(test)]
mod tests {
    use super::super::svg::tests::assert_sound;
    use super::*;

    fn node(name: &str, used: Option<f64>) -> NodeBox {
        NodeBox {
            name: name.to_owned(),
            input: name == "device",
            used,
            memory: "20 MB of 100 MB".to_owned(),
            runs: vec![(0, "layers 0-3".to_owned())],
        }
    }

    fn hop(from: &str, to: &str) -> HopArrow {
        HopArrow { model: 0, from: from.to_owned(), to: to.to_owned(), label: "5 ms".to_owned() }
    }

    #[test]
    fn nodes_and_the_way_through_them_are_drawn() {
        let picture = PlacementDiagram {
            title: "placement".to_owned(),
            models: vec!["model".to_owned()],
            tiers: vec![
                TierColumn { name: "tier 0".to_owned(), nodes: vec![node("device", Some(0.2))] },
                TierColumn {
                    name: "tier 1".to_owned(),
                    nodes: vec![node("<edge>", Some(f64::NAN)), node("near", None)],
                },
            ],
            hops: vec![hop("device", "<edge>"), hop("<edge>", "near"), hop("near", "nowhere")],
        };
        let picture = picture.to_svg();
        assert_sound(&picture);
        assert!(picture.contains("device (input)") && picture.contains("&lt;edge&gt;"));
        assert_eq!(picture.matches("<path").count(), 2);
        assert_eq!(picture.matches("class=\"f5\"").count(), 1, "used memory, where it is known");
    }

    #[test]
    fn a_placement_of_nothing_is_a_picture_too() {
        let picture = PlacementDiagram {
            title: String::new(),
            models: Vec::new(),
            tiers: Vec::new(),
            hops: Vec::new(),
        };
        assert_sound(&picture.to_svg());
    }
}

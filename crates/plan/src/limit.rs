//! When a search has to stop.

/// Says when a search has to stop. Planners have no clock: who calls them brings one.
#[derive(Clone, Copy)]
pub struct SearchLimit<'a>(Option<&'a dyn Fn() -> bool>);

impl<'a> SearchLimit<'a> {
    /// Never: the search goes on until it is through.
    pub fn none() -> Self {
        Self(None)
    }

    /// As soon as `reached` says so. It is asked often; it should be quick.
    pub fn new(reached: &'a dyn Fn() -> bool) -> Self {
        Self(Some(reached))
    }

    /// Whether it is time to stop.
    pub fn is_reached(&self) -> bool {
        self.0.is_some_and(|reached| reached())
    }
}

impl std::fmt::Debug for SearchLimit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "SearchLimit(set)" } else { "SearchLimit(none)" })
    }
}

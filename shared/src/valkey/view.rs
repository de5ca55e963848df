//! One node's view of the cluster, and views that agree sharing what they agree on.
//!
//! With n nodes one observation holds n views of n lines. At rest they differ in nothing but times and the mark
//! `myself`, so neither is part of what is shared. Draws no conclusion.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::types::{NodeId, NodeLine};

/// The lines of CLUSTER NODES, ordered by ID: one of them is found without a look at the others.
///
/// Of the times it keeps only when the last pong came from those that it doubts; in its lines they are 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Without times, and none marked `myself`: what others may say as well.
    lines: Arc<[Arc<NodeLine>]>,
    /// The line marked `myself`, and its place.
    own: Option<(usize, Box<NodeLine>)>,
    /// When the last pong came, of nodes that are doubted, ordered by ID.
    pongs: Vec<(NodeId, u64)>,
    handshakes: usize,
}

impl View {
    /// The line of `id`.
    pub fn line(&self, id: NodeId) -> Option<&NodeLine> {
        let place = self.lines.partition_point(|line| line.id < id);
        self.at(place).filter(|line| line.id == id)
    }

    /// The answering node's own line, marked `myself`.
    pub fn own(&self) -> Option<&NodeLine> {
        self.own.as_ref().map(|(_, line)| &**line)
    }

    /// Every line.
    pub fn iter(&self) -> Lines<'_> {
        Lines { view: self, next: 0 }
    }

    /// Number of lines: nodes that it knows, itself and nodes in handshake included.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// No line at all.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Number of nodes in handshake, under random IDs.
    pub fn handshakes(&self) -> usize {
        self.handshakes
    }

    /// The lines as others may say them as well: none is marked `myself`. The very same slice for views that agree, once
    /// [`Sharing`] has seen them.
    pub fn common(&self) -> &[Arc<NodeLine>] {
        &self.lines
    }

    /// When the last pong came from each node flagged `fail` or `fail?`, Unix milliseconds of the answering node; without
    /// those that never answered.
    pub fn last_pongs(&self) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        self.pongs.iter().copied()
    }

    /// The lines to change and to make a view of again.
    pub fn to_vec(&self) -> Vec<NodeLine> {
        let mut lines: Vec<NodeLine> = self.iter().cloned().collect();
        for line in &mut lines {
            let pong = self.pongs.iter().find(|(id, _)| *id == line.id);
            line.pong_recv = pong.map_or(0, |(_, time)| *time);
        }
        lines
    }

    fn at(&self, place: usize) -> Option<&NodeLine> {
        match &self.own {
            Some((own, line)) if *own == place => Some(line),
            _ => self.lines.get(place).map(|line| &**line),
        }
    }
}

impl From<Vec<NodeLine>> for View {
    fn from(mut lines: Vec<NodeLine>) -> Self {
        lines.sort_by_key(|line| line.id);
        let mut pongs = Vec::new();
        for line in &mut lines {
            if (line.flags.fail || line.flags.pfail) && line.pong_recv > 0 {
                pongs.push((line.id, line.pong_recv));
            }
            (line.ping_sent, line.pong_recv) = (0, 0);
        }
        let own = lines.iter_mut().enumerate().find(|(_, line)| line.flags.myself).map(|(place, line)| {
            let own = Box::new(line.clone());
            line.flags.myself = false;
            (place, own)
        });
        let handshakes = lines.iter().filter(|line| line.flags.handshake).count();
        Self { lines: lines.into_iter().map(Arc::new).collect(), own, pongs, handshakes }
    }
}

impl Serialize for View {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'a> IntoIterator for &'a View {
    type Item = &'a NodeLine;
    type IntoIter = Lines<'a>;

    fn into_iter(self) -> Lines<'a> {
        self.iter()
    }
}

/// The lines of a [`View`], by ID.
#[derive(Debug, Clone)]
pub struct Lines<'a> {
    view: &'a View,
    next: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a NodeLine;

    fn next(&mut self) -> Option<&'a NodeLine> {
        let line = self.view.at(self.next)?;
        self.next += 1;
        Some(line)
    }
}

/// Views kept to be shared as wholes: those that agree arrive close together.
const RECENT: usize = 8;

/// Lets views share equal lines, and their lines as a whole with a view seen lately that says the same: of n views that
/// agree only one takes memory, and that they agree is seen without a look at their lines. Changes nothing of what a
/// view says.
#[derive(Debug, Default)]
pub struct Sharing {
    known: BTreeMap<NodeId, Vec<Arc<NodeLine>>>,
    recent: VecDeque<Arc<[Arc<NodeLine>]>>,
}

impl Sharing {
    /// Replaces what `view` has in common with views seen before.
    pub fn share(&mut self, view: &mut View) {
        let like = self.recent.front().cloned().unwrap_or_default();
        let lines: Vec<Arc<NodeLine>> = view
            .lines
            .iter()
            .enumerate()
            .map(|(place, line)| match like.get(place) {
                Some(known) if known == line => Arc::clone(known),
                _ => self.line(line),
            })
            .collect();
        let same = |known: &Arc<[Arc<NodeLine>]>| {
            known.len() == lines.len()
                && known.iter().zip(&lines).all(|(left, right)| Arc::ptr_eq(left, right))
        };
        if let Some(place) = self.recent.iter().position(same) {
            self.recent.swap(0, place);
        } else {
            self.recent.push_front(lines.into());
            self.recent.truncate(RECENT);
        }
        if let Some(common) = self.recent.front() {
            view.lines = Arc::clone(common);
        }
    }

    fn line(&mut self, line: &Arc<NodeLine>) -> Arc<NodeLine> {
        let known = self.known.entry(line.id).or_default();
        if let Some(same) = known.iter().find(|same| *same == line) {
            return Arc::clone(same);
        }
        known.push(Arc::clone(line));
        Arc::clone(line)
    }
}

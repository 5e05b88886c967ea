//! A list that grows without a pause.

use std::ops::{Index, IndexMut};

/// The number of elements in a chunk.
const CHUNK: usize = 256;

/// A list whose full chunks stay where they are. A `Vec` copies all elements when it grows, which stops the server if there are
/// many.
#[derive(Debug)]
pub(super) struct StableList<T> {
    /// All chunks but the last are full, and none is empty.
    chunks: Vec<Vec<T>>,
}

impl<T> Default for StableList<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T> StableList<T> {
    pub(super) fn len(&self) -> usize {
        let last = self.chunks.last().map_or(0, Vec::len);
        self.chunks.len().saturating_sub(1) * CHUNK + last
    }

    pub(super) fn push(&mut self, node: T) {
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(node),
            _ => self.chunks.push(vec![node]), // most lists are short
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let chunk = self.chunks.last_mut()?;
        let node = chunk.pop();
        if chunk.is_empty() {
            self.chunks.pop();
        }
        node
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }
}

impl<T> Index<usize> for StableList<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.chunks[index / CHUNK][index % CHUNK]
    }
}

impl<T> IndexMut<usize> for StableList<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list_whose_full_chunks_stay_where_they_are() {
        const COUNT: usize = 10 * CHUNK;
        let mut nodes = StableList::default();
        for index in 0..CHUNK {
            nodes.push(index);
        }
        let first: *const usize = &raw const nodes[0];
        for index in CHUNK..COUNT {
            assert_eq!(nodes.len(), index);
            nodes.push(index);
        }
        assert_eq!(first, &raw const nodes[0]);
        assert!(nodes.iter().copied().eq(0..COUNT));
        for index in 0..COUNT {
            nodes[index] *= 2;
            assert_eq!(nodes.get(index), Some(&(2 * index)));
        }
        assert_eq!(nodes.get(COUNT), None);
        for index in (0..COUNT).rev() {
            assert_eq!(nodes.pop(), Some(2 * index));
            assert_eq!(nodes.len(), index);
        }
        assert_eq!(nodes.pop(), None);
        assert!(nodes.chunks.is_empty());
    }
}

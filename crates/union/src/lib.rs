//! The union: several layers become one writable tree

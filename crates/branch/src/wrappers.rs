//! What branches around another one have in common.

/// Operations that are the inner object's.
macro_rules! forward_to_inner {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            self.inner.$name($($arg),*)
        })*
    };
}
pub(crate) use forward_to_inner;

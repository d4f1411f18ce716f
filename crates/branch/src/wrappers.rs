//! What branches around another one have in common.

/// Operations that are the inner object's.
macro_rules! passed_on {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            self.inner.$name($($arg),*)
        })*
    };
}
pub(crate) use passed_on;

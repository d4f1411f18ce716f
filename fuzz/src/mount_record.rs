//! What a service leaves of a mount to its successor, and what a command sends of one to a service.

use vellum_service::config::Config;
use vellum_service::pool::parse_mount_record;

/// Any bytes as a mount record. What was mounted comes back when it is written again.
pub(crate) fn feed(bytes: &[u8]) -> bool {
    let record = parse_mount_record(bytes);
    match &record {
        Ok(config) => again(config),
        Err(refused) => assert!(!refused.to_string().chars().any(char::is_control)),
    }
    if let Ok(config) = serde_json::from_slice::<Config>(bytes) {
        let _ = config.check();
        again(&config);
    }
    record.is_ok()
}

fn again(config: &Config) {
    let text = serde_json::to_vec(config).expect("a configuration can be written");
    assert_eq!(&serde_json::from_slice::<Config>(&text).expect("it can be read again"), config);
}

mod twin;
use super::SourceId;

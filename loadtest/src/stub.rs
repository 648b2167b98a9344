pub mod config {
    #[derive(Debug, Clone, clap::Args)]
    pub struct ServeArgs {
        #[arg(long)]
        pub listen: String,
        #[arg(long)]
        pub http_listen: String,
        #[arg(long)]
        pub log: String,
        #[arg(long)]
        pub data_dir: String,
    }
}
pub mod app {
    pub fn serve(_a: super::config::ServeArgs) -> Result<(), std::io::Error> {
        Ok(())
    }
}

//! The content that compared HTTP servers serve: a response without a file, and files of several lengths in a private
//! folder. Also writes the configuration of an nginx that serves both.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

/// The body of the response without a file.
const RESPONDED: &str = "Hello, World!";
/// Bodies up to this length are verified byte for byte in every response.
const COMPARED_BYTES: usize = 4096;
/// The verification interval of larger bodies: one response in N, because comparing takes time from the client.
const COMPARED_OF: u64 = 16;
/// Folders that are searched for a server after `PATH`. Distributions leave `sbin` out of the `PATH` of normal users.
const FOLDERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/usr/local/nginx/sbin"];
/// Descriptors that nginx needs besides its connections.
const OTHER_FILES: usize = 64;
/// nginx closes idle connections when fewer than a sixteenth of its connection slots are free. The configuration adds
/// an eighth more slots than needed.
const SPARE_PART: usize = 8;

/// A temporary folder of files to serve. Dropping this value deletes the folder.
pub(crate) struct Pages {
    folder: TempDir,
    /// The body of each file, by length. The response without a file is not included.
    bodies: Vec<(u64, Arc<[u8]>)>,
}

impl Pages {
    /// Writes a file of each length. `None` stands for the response without a file.
    pub(super) fn new(sizes: &[Option<u64>], seed: u64) -> io::Result<Pages> {
        let folder = tempfile::Builder::new().prefix("annulus-http-").tempdir()?;
        // Workers of nginx run as user `nobody` and must be able to read the files.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let files = folder.path().join("files");
        fs::create_dir(&files)?;
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bodies = Vec::new();
        for size in sizes.iter().flatten().copied() {
            let mut body = vec![0; size as usize];
            rng.fill(&mut body);
            fs::write(files.join(name(size)), &body)?;
            bodies.push((size, body.into()));
        }
        fs::write(files.join("hello"), RESPONDED)?;
        Ok(Pages { folder, bodies })
    }

    /// Returns the folder that is served.
    pub(super) fn files(&self) -> PathBuf {
        self.folder.path().join("files")
    }

    /// Returns the file with the body of that length. `None` selects a file with the body of the response without a
    /// file.
    pub(super) fn file(&self, size: Option<u64>) -> PathBuf {
        self.files().join(size.map_or("hello".into(), name))
    }

    /// Returns the path that the client requests.
    pub(super) fn path(size: Option<u64>) -> String {
        size.map_or("/".into(), |size| format!("/{}", name(size)))
    }

    /// Returns the expected body, and N if one in N responses is compared with it.
    pub(super) fn body(&self, size: Option<u64>) -> (Arc<[u8]>, u64) {
        let matched = self.bodies.iter().find(|(other, _)| Some(*other) == size);
        let body = matched.map_or_else(|| RESPONDED.as_bytes().into(), |(_, body)| body.clone());
        let one_of = if body.len() <= COMPARED_BYTES {
            1
        } else {
            COMPARED_OF
        };
        (body, one_of)
    }

    /// Writes an nginx configuration for `connections`: one worker, tuned for speed.
    pub(super) fn nginx(&self, address: SocketAddr, connections: usize) -> io::Result<PathBuf> {
        let (folder, files) = (self.folder.path().display(), self.files());
        let files = files.display();
        let descriptors = connections + connections / SPARE_PART + OTHER_FILES;
        let text = format!(
            "daemon off;\n\
             worker_processes 1;\n\
             worker_rlimit_nofile {descriptors};\n\
             pid {folder}/nginx.pid;\n\
             error_log {folder}/error.log crit;\n\
             events {{ worker_connections {descriptors}; }}\n\
             http {{\n\
             \taccess_log off;\n\
             \tsendfile on;\n\
             \ttcp_nopush on;\n\
             \tkeepalive_timeout 75s;\n\
             \tkeepalive_requests 1000000000;\n\
             \topen_file_cache max=1000 inactive=60s;\n\
             \topen_file_cache_valid 60s;\n\
             \tclient_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n\
             \tfastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;\n\
             \tserver {{\n\
             \t\tlisten {address} backlog=4096;\n\
             \t\tlocation = / {{ default_type text/plain; return 200 \"{RESPONDED}\"; }}\n\
             \t\tlocation / {{ root {files}; }}\n\
             \t}}\n\
             }}\n"
        );
        let path = self.folder.path().join("nginx.conf");
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Returns the folder for nginx's PID file, error log and temporary files.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn name(size: u64) -> String {
    format!("{size}.bin")
}

/// Returns the path of an installed program.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    let is_program = |path: &PathBuf| {
        let matched = fs::metadata(path);
        matched.is_ok_and(|matched| matched.is_file() && matched.permissions().mode() & 0o111 != 0)
    };
    folders.map(|folder| folder.join(name)).find(is_program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_has_its_file_and_the_folder_goes_with_the_pages() {
        let pages = Pages::new(&[None, Some(10), Some(100_000)], 1).unwrap();
        for (size, one_of) in [(10, 1), (100_000, COMPARED_OF)] {
            let (body, compared) = pages.body(Some(size));
            assert_eq!((body.len() as u64, compared), (size, one_of));
            assert_eq!(fs::read(pages.file(Some(size))).unwrap(), *body);
            assert!(
                pages
                    .file(Some(size))
                    .ends_with(&Pages::path(Some(size))[1..])
            );
        }
        assert_eq!(&*pages.body(None).0, RESPONDED.as_bytes());
        assert_eq!(Pages::path(None), "/");
        let folder = pages.folder().to_owned();
        drop(pages);
        assert!(!folder.exists());
    }

    #[test]
    fn a_configuration_names_its_address_and_its_folder() {
        let pages = Pages::new(&[None], 1).unwrap();
        let address = "127.0.0.1:8080".parse().unwrap();
        let text = fs::read_to_string(pages.nginx(address, 1_000).unwrap()).unwrap();
        assert!(text.contains("listen 127.0.0.1:8080 "), "{text}");
        assert!(text.contains(&format!("root {};", pages.files().display())));
        assert!(text.contains("worker_connections 1189;"), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}

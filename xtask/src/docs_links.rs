//! The links between the pages of the documentation. Only a test: it reads every page of the checkout.

use std::fs;
use std::path::{Path, PathBuf};

/// Every page under `folder`, build results and hidden folders left out.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The anchor of a heading, as code hosts make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

fn anchors(page: &str) -> Vec<String> {
    page.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect()
}

#[test]
fn every_relative_link_in_a_page_leads_to_a_file_and_a_heading() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut found, mut broken, mut links) = (Vec::new(), Vec::new(), 0);
    pages(root, &mut found);
    for page in &found {
        let text = fs::read_to_string(page).unwrap();
        // Code is not read: it is full of brackets.
        let text: String = text.split('`').step_by(2).collect();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            links += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let leads = to.exists()
                && (heading.is_empty()
                    || anchors(&fs::read_to_string(&to).unwrap_or_default()).contains(&heading.to_owned()));
            if !leads {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(links > 20 && broken.is_empty(), "of {links} links are broken:\n{}", broken.join("\n"));
}

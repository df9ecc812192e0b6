//! Making a site.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, bail};
use spur_sdk::identity::{
    Authority, Caller, Credentials, Grant, Identity, IdentityError, KeyRequest, Lifetimes, Registry, Roster,
    SiteKey, Subject,
};
use spur_sdk::store::Backup;
use spur_sdk::store::SharedStore;
use spur_sdk::store::file::{FileStore, Missing};
use spur_sdk::{NodeName, SystemClock};

use crate::config::{Config, StoreConfig};
use crate::{say, store};

/// The name that every controller's certificate has, so that clients need not know by which of its own they came.
const ANY_CONTROLLER: &str = "controller.spur.internal";

/// The caller that is noted for what root does here.
fn root() -> anyhow::Result<Caller> {
    Ok(Caller::local(Identity::Admin { name: "root".parse()? }, 0, std::process::id()))
}

/// Makes what is not there yet.
pub(crate) async fn init(config: &Config, site_key: Option<&Path>) -> anyhow::Result<()> {
    let state = &config.controller.state;
    spur_sdk::fs::create_folder(state, 0o700)?;
    let key_path = config.in_state("site.key");
    if let Some(given) = site_key
        && given != key_path
    {
        let key = spur_sdk::fs::read_secret(given, 1 << 16)?;
        match spur_sdk::fs::create_file(&key_path, &key, 0o600) {
            Err(error) if error.source.kind() == std::io::ErrorKind::AlreadyExists => {
                if spur_sdk::fs::read_secret(&key_path, 1 << 16)? != key {
                    bail!("{} is another site key than {}", key_path.display(), given.display());
                }
            }
            done => done?,
        }
    }
    let opened = store::open(config, Missing::Create).await?;
    let known = opened.store_has_authority().await?;
    let key = match SiteKey::load(&key_path) {
        Ok(key) => key,
        Err(error) if !key_path.exists() => {
            if known {
                bail!(
                    "the site exists already, and {} does not: copy it from another controller or from the backup",
                    key_path.display()
                );
            }
            drop(error);
            SiteKey::create(&key_path)?
        }
        Err(error) => return Err(error.into()),
    };
    let now = SystemTime::now();
    let lifetime = Lifetimes::default().authority;
    let (authority, made) = Authority::establish(&opened.store, &key, &config.site, lifetime, now).await?;
    say(&format!(
        "{} the authority of site {}, {}",
        if made { "made" } else { "found" },
        config.site,
        authority.fingerprint()
    ));
    let admin = config.in_state("admin.pem");
    if Credentials::load(&admin, now).is_ok() {
        say(&format!("found the admin's credentials {}", admin.display()));
    } else {
        let subject = Subject::Admin("admin".parse()?);
        issue(&opened.store, authority.clone(), subject, &[]).await?.save(&admin)?;
        say(&format!("made the admin's credentials {}", admin.display()));
    }
    controller(config, &opened.store, authority).await?;
    say("next: spurctld run");
    Ok(())
}

impl store::Opened {
    async fn store_has_authority(&self) -> anyhow::Result<bool> {
        use spur_sdk::store::Store;
        Ok(self.store.get(&"identity/authority".parse()?).await?.is_some())
    }
}

/// This controller's credentials: those that it has, or new ones when they are missing, over two thirds of their time
/// or of another name.
pub(crate) async fn controller(
    config: &Config,
    store: &SharedStore,
    authority: Authority,
) -> anyhow::Result<Credentials> {
    let path = config.in_state("controller.pem");
    let subject = Subject::Controller(config.name()?);
    let now = SystemTime::now();
    if let Ok(credentials) = Credentials::load(&path, now)
        && *credentials.subject() == subject
        && credentials.authority() == authority.certificate_der()
        && now < credentials.content().renew_at()
    {
        return Ok(credentials);
    }
    let mut names: Vec<NodeName> = vec![ANY_CONTROLLER.parse()?, config.name()?];
    if let Some((host, _)) = config.advertised()?.rsplit_once(':')
        && let Ok(host) = host.parse()
    {
        names.push(host);
    }
    let credentials = issue(store, authority, subject, &names).await?;
    credentials.save(&path)?;
    Ok(credentials)
}

async fn issue(
    store: &SharedStore,
    authority: Authority,
    subject: Subject,
    names: &[NodeName],
) -> Result<Credentials, anyhow::Error> {
    let registry = Registry::new(store.clone(), authority, Roster::new(SystemClock), SystemClock);
    let grant = Grant::new(subject.clone(), Lifetimes::default().of(&subject)).dns(names.iter().cloned());
    let request = KeyRequest::generate()?;
    let certificate = registry.issue(request.pem(), &grant, &root()?).await;
    let credentials = certificate.and_then(|certificate| request.complete(&certificate));
    credentials.map_err(|error: IdentityError| error.into())
}

/// Fills an empty store from a backup.
pub(crate) async fn restore(config: &Config, backup: &Path) -> anyhow::Result<()> {
    let text = Backup::read(backup)?;
    let entries = text.snapshot().entries.len();
    let StoreConfig::File = config.store else {
        let opened = store::open(config, Missing::Refuse).await?;
        text.restore_into(&opened.store, "etcd").await.context("restore into etcd")?;
        say(&format!("restored {entries} entries into etcd"));
        return Ok(());
    };
    spur_sdk::fs::create_folder(&config.controller.state, 0o700)?;
    let path = config.in_state("store.db");
    FileStore::restore(text, &path).await.with_context(|| format!("restore into {}", path.display()))?;
    say(&format!("restored {entries} entries into {}", path.display()));
    let key = config.in_state("site.key");
    if !key.exists() {
        say(&format!(
            "note: {} is missing; without the site key of that time no secret can be read",
            key.display()
        ));
    }
    Ok(())
}

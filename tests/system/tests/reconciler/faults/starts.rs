//! Each fault at each request of a controller that starts where everything is in step: it gets there all the same, and
//! writes nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use kube::Client;
use spur_sdk::Deadlines;
use spur_sdk_quota::Policy;
use spur_sdk_quota::cluster::ControllerOptions;
use spur_sdk_quota::k8s::KubeApi;
use spur_system_tests::model;
use spur_system_tests::proxy::{Asked, Fault, Moment, Proxy};
use spur_system_tests::reconciler::{Running, Store, in_step, quick_lease};
use spur_test_control_plane::ControlPlane;
use tokio::time::sleep;

use super::{Armed, REQUEST_FAULTS};
use crate::{accounts, timed};

/// What can become of a watch when it begins.
const WATCH_FAULTS: [Fault; 11] = [
    Fault::Overloaded,
    Fault::Status(409),
    Fault::Status(410),
    Fault::Status(500),
    Fault::Status(503),
    Fault::Hang,
    Fault::End,
    Fault::Cut,
    Fault::Expired,
    Fault::Silent,
    Fault::Slow(Duration::from_millis(500)),
];

/// How many controllers start at the same time.
const AT_ONCE: usize = 24;

/// Objects that come in a page, so that most lists have several.
const PAGE: u32 = 3;

/// A control plane in step with three accounts.
async fn in_step_already() -> Result<(ControlPlane, Store)> {
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    let text = accounts(&["one", "two", "three"]);
    let store = Store::of(&text)?;
    let running = Running::start(store.clone(), &client, &Policy::default());
    in_step(&client, &model(&text)?, &Policy::default()).await?;
    running.stop().await?;
    Ok((control_plane, store))
}

/// One start behind a proxy, with a Lease of its own.
struct Start {
    proxy: Proxy,
    armed: Armed,
    running: Running,
}

impl Start {
    async fn new(
        store: &Store,
        upstream: &Client,
        fault: Option<&(String, usize, Fault)>,
        lease: &str,
    ) -> Result<Self> {
        let proxy = Proxy::start_with(upstream.clone(), Some(PAGE)).await?;
        let armed = Armed::default();
        if let Some((line, after, fault)) = fault {
            armed.arm(line.clone(), *after, *fault);
        }
        armed.over(&proxy);
        let options = ControllerOptions::default().lease(Some(quick_lease().name(lease)));
        let deadlines = Deadlines::default()
            .kubernetes_unary(Duration::from_millis(1500))
            .kubernetes_watch_silence(Duration::from_secs(3));
        let api = KubeApi::new(proxy.client()?, deadlines);
        let running = Running::start_on(store.clone(), api, &Policy::default(), options);
        Ok(Self { proxy, armed, running })
    }

    /// Waits until it has begun its work, nothing being left to do, and has renewed its Lease.
    async fn settled(&mut self) -> Result<()> {
        self.running.settled().await?;
        let renewals = |asked: &Asked| asked.request.is_of_lease() && asked.request.method == "PUT";
        self.until(|asked| asked.iter().any(renewals)).await
    }

    async fn until(&self, is_true: impl Fn(&[Asked]) -> bool) -> Result<()> {
        let start = Instant::now();
        while !is_true(&self.proxy.asked()) {
            ensure!(start.elapsed() < Duration::from_secs(30), "it does not come: {:#?}", self.proxy.asked());
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn has_written_nothing(&self) -> Result<()> {
        let asked = self.proxy.asked();
        let written = asked.iter().find(|asked| asked.request.is_write() && !asked.request.is_of_lease());
        ensure!(written.is_none(), "{written:?}");
        Ok(())
    }
}

/// What a start asks for, and how often.
async fn reference(store: &Store, upstream: &Client) -> Result<BTreeMap<String, usize>> {
    let mut start = Start::new(store, upstream, None, "start").await?;
    start.settled().await?;
    start.has_written_nothing()?;
    let mut lines = BTreeMap::new();
    for asked in start.proxy.asked() {
        *lines.entry(asked.request.line()).or_default() += 1;
    }
    Ok(lines)
}

/// A start with one fault; whether it struck.
async fn outlasts(
    store: &Store,
    upstream: &Client,
    number: usize,
    pair: (String, usize, Fault),
) -> Result<bool> {
    let lease = format!("start-{number:03}");
    let (line, after, fault) = pair;
    let line = if line.contains("/leases") { line.replace("/start", &format!("/{lease}")) } else { line };
    let pair = (line.clone(), after, fault);
    let mut start = Start::new(store, upstream, Some(&pair), &lease).await?;
    start.settled().await?;
    // What failed is asked again; of the Lease, by reading or writing it.
    let strikes = after + 1;
    start
        .until(|asked| {
            let same = |asked: &&Asked| asked.request.line() == line;
            let Some(struck) = asked.iter().filter(same).nth(strikes - 1) else { return false };
            let slow = matches!(fault, Fault::Slow(_));
            let answers = |asked: &Asked| {
                let same = asked.request.line() == line
                    || (asked.request.is_of_lease() && struck.request.is_of_lease());
                let list = line.ends_with("continue") && line.starts_with(&asked.request.line());
                let later = asked.request.number > struck.request.number || slow;
                later && (same || list) && asked.status.is_some_and(|status| status < 300)
            };
            asked.iter().any(answers)
        })
        .await?;
    start.has_written_nothing()?;
    let (struck, _) = start.armed.disarm();
    Ok(struck == 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_where_all_is_in_step_outlasts_a_server_at_fault() -> Result<()> {
    let (control_plane, store) = in_step_already().await?;
    let upstream = control_plane.client().await?;
    tokio::try_join!(
        timed(
            "a fault at any request of a start delays it, and nothing is written",
            a_fault_at_any_request_of_a_start_delays_it_and_nothing_is_written(&store, &upstream),
        ),
        timed(
            "a server that refuses for long is not asked without a pause",
            a_server_that_refuses_for_long_is_not_asked_without_a_pause(&store, &upstream),
        ),
    )?;
    timed(
        "an overloaded server is left alone for as long as it asks",
        an_overloaded_server_is_left_alone_for_as_long_as_it_asks(&store, &upstream),
    )
    .await?;
    control_plane.stop().await
}

async fn a_fault_at_any_request_of_a_start_delays_it_and_nothing_is_written(
    store: &Store,
    upstream: &Client,
) -> Result<()> {
    let lines = reference(store, upstream).await?;
    let faults = |line: &str| {
        if line.contains(" watch=") {
            WATCH_FAULTS.to_vec()
        } else if line.contains("/leases") {
            REQUEST_FAULTS.to_vec()
        } else {
            REQUEST_FAULTS.into_iter().chain([Fault::Status(410)]).collect()
        }
    };
    // Later renewals are like the first.
    let most = |line: &str, count: usize| if line.starts_with("PUT") { 1 } else { count };
    let requests =
        lines.iter().flat_map(|(line, count)| (0..most(line, *count)).map(move |after| (line, after)));
    let pairs: Vec<_> = requests
        .flat_map(|(line, after)| faults(line).into_iter().map(move |fault| (line.clone(), after, fault)))
        .collect();
    let (count, begin) = (pairs.len(), Instant::now());
    let starts = pairs.into_iter().enumerate().map(|(number, pair)| async move {
        let what = format!("{:?} at {} after {}", pair.2, pair.0, pair.1);
        outlasts(store, upstream, number, pair)
            .await
            .with_context(|| what.clone())
            .map(|struck| (what, struck))
    });
    let ends: Vec<_> = futures::stream::iter(starts).buffer_unordered(AT_ONCE).collect().await;
    let failed: Vec<_> = ends
        .iter()
        .filter_map(|end| match end {
            Ok((_, true)) => None,
            Ok((what, false)) => Some(format!("{what}: it never came to that")),
            Err(error) => Some(format!("{error:#}")),
        })
        .collect();
    println!("{} of {count} pairs of fault and request, {:?}", count - failed.len(), begin.elapsed());
    if let Some(first) = failed.first() {
        bail!(
            "{} failed: {first}\n{:#?}",
            failed.len(),
            failed.iter().map(|end| end.lines().next()).collect::<Vec<_>>()
        );
    }
    Ok(())
}

async fn a_server_that_refuses_for_long_is_not_asked_without_a_pause(
    store: &Store,
    upstream: &Client,
) -> Result<()> {
    let stubborn = [
        ("watches that are over at once", true, Fault::End),
        ("watches whose moment is forgotten", true, Fault::Status(410)),
        ("watches whose moment is forgotten, told as an event", true, Fault::Expired),
        ("watches that fail", true, Fault::Status(500)),
        ("lists that fail", false, Fault::Status(500)),
        ("lists whose moment is forgotten", false, Fault::Status(410)),
        ("lists that break off", false, Fault::Cut),
        ("lists of a server that is overloaded", false, Fault::Overloaded),
    ];
    let stubborn = stubborn.into_iter().enumerate().map(|(number, (what, watches, fault))| {
        async move {
            let start = Start::new(store, upstream, None, &format!("stubborn-{number}")).await?;
            start.proxy.script(move |request, moment| {
                let struck =
                    moment == Moment::Asked && !request.is_of_lease() && request.is_watch() == watches;
                if struck { fault } else { Fault::None }
            });
            sleep(Duration::from_secs(8)).await;
            start.has_written_nothing()?;
            let mut asked: BTreeMap<String, Vec<Instant>> = BTreeMap::new();
            for one in start.proxy.asked().into_iter().filter(|asked| !asked.request.is_of_lease()) {
                asked.entry(one.request.line()).or_default().push(one.at);
            }
            // The longest time for which each was not asked.
            let pause =
                |times: &Vec<Instant>| times.windows(2).map(|pair| pair[1].duration_since(pair[0])).max();
            let pauses = asked.values().filter(|times| times.len() > 2).filter_map(pause);
            let shortest = pauses.min();
            let requests: usize = asked.values().map(Vec::len).sum();
            println!("{what}: {requests} requests in 8 s, pauses of up to {shortest:?}");
            anyhow::Ok((what, requests, shortest))
        }
    });
    let busy = futures::future::try_join_all(stubborn).await?;
    let busy = busy
        .into_iter()
        .filter(|(_, _, pause)| pause.is_some_and(|pause| pause < Duration::from_millis(950)));
    let busy: Vec<_> = busy.collect();
    ensure!(busy.is_empty(), "asked without a pause: {busy:#?}");
    Ok(())
}

async fn an_overloaded_server_is_left_alone_for_as_long_as_it_asks(
    store: &Store,
    upstream: &Client,
) -> Result<()> {
    let mut start = Start::new(store, upstream, None, "overloaded").await?;
    start.settled().await?;
    let armed = start.armed.clone();
    let line = "PATCH /api/v1/namespaces/spur-acct-one force=true";
    armed.arm(line.to_owned(), 0, Fault::Overloaded);
    let namespaces = kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(upstream.clone());
    let label = serde_json::json!({ "pod-security.kubernetes.io/enforce": "privileged" });
    crate::edit(&namespaces, "spur-acct-one", serde_json::json!({ "metadata": { "labels": label } })).await?;
    start.until(|asked| asked.iter().filter(|asked| asked.request.line() == line).count() == 2).await?;
    let times: Vec<_> =
        start.proxy.asked().into_iter().filter(|asked| asked.request.line() == line).collect();
    let [first, second] = times.as_slice() else { bail!("{times:#?}") };
    let waited = second.at.duration_since(first.at);
    ensure!(waited >= Duration::from_millis(990), "it waited {waited:?} of a second");
    Ok(())
}

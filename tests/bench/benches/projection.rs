//! Projecting sites of 1 000, 10 000 and 100 000 accounts with ten users each: the time per account must not grow.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use spur_bench::site;
use spur_sdk_quota::{Policy, QuotaProjector, check};

#[expect(clippy::expect_used, reason = "the bench's own names are legal")]
fn project(criterion: &mut Criterion) {
    let policy = Policy::default();
    let mut group = criterion.benchmark_group("project");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(5));
    for accounts in [1_000, 10_000, 100_000] {
        let model = site(accounts, 10).expect("the bench's own names are legal");
        group.throughput(Throughput::Elements(accounts as u64));
        group.bench_with_input(BenchmarkId::from_parameter(accounts), &model, |bencher, model| {
            bencher.iter(|| black_box(QuotaProjector::new(&policy).project(model)));
        });
    }
    group.finish();
    let projection = QuotaProjector::new(&policy).project(&site(10_000, 10).expect("legal"));
    criterion.bench_function("check/10000", |bencher| bencher.iter(|| black_box(check(&projection))));
}

criterion_group!(benches, project);
criterion_main!(benches);

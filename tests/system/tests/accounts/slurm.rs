//! The same words to a real sacctmgr and to ours, and what both show then.

use anyhow::{Result, ensure};
use spur_sdk_quota::source::{Format, ReadOptions, read};
use spur_test_slurm::Slurm;

use crate::differences::Comparison;
use crate::import::held;
use crate::lab::{Lab, words};

/// What both are told.
const WORDS: &[&str] = &[
    "add qos gpu",
    "add qos name=long,debug description=\"Long jobs\" priority=7",
    "add qos fancy Priority=9 GrpTRES=cpu=10,mem=2000,gres/gpu=3 MaxWall=90 MaxJobsPU=3 MaxSubmitJobsPU=4 \
     MaxSubmitJobsPA=5 GrpSubmitJobs=6 GrpWall=120 MaxTRESPU=cpu=5 MaxTRES=cpu=4 Preempt=long PreemptMode=requeue \
     PreemptExemptTime=00:02:00 Flags=NoDecay,DenyOnLimit UsageFactor=2.5",
    "modify qos where name=gpu set priority=20 maxwall=2-00:00:00 preempt=debug,long preemptmode=cancel",
    "add account name=science grptres=cpu=512,mem=1048576,gres/gpu=64,node=20,license/matlab=5,billing=7 \
     description=\"Natural sciences\" organization=Uni fairshare=100",
    "ADD Account physics,chem PARENT=science GrpTres=cpu=64,mem=131072,gres/gpu=8,gres/gpu:mi300x=4 grpjobs=11",
    "create acct Optics Parent=physics GrpMem=1500 GrpCPUs=12",
    "add account silent",
    "modify account where name=silent set description=",
    "modify account where name=physics set grptres=cpu=128 fairshare=5 desc=Light",
    "modify account chem set grptres=mem=-1 grpjobs=-1",
    "modify account optics set parent=chem",
    "add user name=alice account=physics,chem defaultaccount=chem adminlevel=operator maxjobs=3 maxwall=1-12 \
     qos=gpu,long defaultqos=gpu maxsubmit=9 grpsubmit=8 grptres=cpu=3 maxtres=cpu=2,mem=1000",
    "add user bob,carol account=optics",
    "add user dave account=silent adminlevel=admin",
    "modify user where name=alice account=physics set maxjobs=7 maxtres=node=2",
    "modify user where account=optics set maxwall=00:30:00 qos=debug,gpu",
    "modify user where name=bob account=optics set qos+=long qos-=debug",
    "modify user carol set maxsubmit=0 defaultqos=gpu",
    "modify user alice set defaultaccount=physics",
    "modify user dave set adminlevel=none",
    "add coordinator account=physics,chem names=alice,bob",
    "delete coordinator account=physics names=bob",
    "add account short,lived",
    "add user erin,frank account=lived",
    "delete user name=erin account=lived",
    "delete user frank",
    "remove account where name=short",
];

/// Words that change nothing, where both say so alike.
const NOTHING: &[&str] = &[
    "add account physics",
    "add user alice account=physics",
    "add qos gpu",
    "modify account where name=nobody set grpjobs=3",
    "modify user where name=nobody set maxjobs=3",
    "modify qos where name=nobody set priority=3",
    "delete account nobody",
    "delete user nobody",
    "delete qos nobody",
    "add user name=zoe",
    "add account",
    "show user where foo=1",
];

/// Tables between `|`.
const TABLES: &[&str] = &[
    "show account",
    "show account withassoc",
    "show account withcoord",
    "list accounts where name=chem,physics withassoc format=account,user,parentname",
    "show account physics,optics format=acc,org,desc",
    "show user",
    "show user withassoc",
    "show users withcoord",
    "show user where adminlevel=operator",
    "show user bob,carol withassoc format=user,account,qos,defaultqos,maxwall",
    "show qos",
    "show qos gpu format=name,prio,preempt,preemptmode,maxwall,description",
    "show assoc",
    "show assoc tree",
    "show associations where account=physics user=alice",
    "show assoc user= format=account,parentname,share,grptres,grpj",
    "show assoc where user=alice,bob format=acc%30,use,maxj,maxtres,grpsub,maxsub",
    "show assoc wopl where account=optics",
    "show assoc where parent=chem format=cluster,account,partition,GrpCPUs,GrpMem,grpnodes,maxcpus,maxnodes",
];

/// Tables for people, which have none of the differences.
const COLUMNS: &[&str] = &[
    "show user where name=alice,bob,carol",
    "show account where name=optics",
    "show assoc tree where account=optics format=account%-15,user,share,maxwall,cluster%3",
    "show qos where name=fancy format=name%4,flags,usagefactor,preemptexempttime,maxsubmitjobspa",
];

/// What both say, by the text.
type Answers = Vec<(&'static str, [(i32, String); 2])>;

/// Asks both several things at once: a real sacctmgr takes a quarter of a second for each.
fn all(lab: &Lab, slurm: &Slurm, texts: &'static [&'static str], options: &[&str]) -> Result<Answers> {
    std::thread::scope(|scope| {
        let ask = |text: &'static str| scope.spawn(move || Ok((text, both(lab, slurm, options, text)?)));
        let asked: Vec<_> = texts.iter().map(|text| ask(text)).collect();
        asked.into_iter().map(|answer| answer.join().unwrap()).collect()
    })
}

fn both(lab: &Lab, slurm: &Slurm, options: &[&str], text: &str) -> Result<[(i32, String); 2]> {
    let words = words(text);
    let words: Vec<_> = options.iter().copied().chain(words.iter().map(String::as_str)).collect();
    let theirs = slurm.sacctmgr(&words)?;
    let ours = lab.spur(&[&["sacctmgr", "-i"], words.as_slice()].concat())?;
    let theirs = (theirs.status.code().unwrap_or(-1), format!("{}{}", theirs.stdout, theirs.stderr));
    Ok([theirs, (ours.code, format!("{}{}", ours.stdout, ours.stderr))])
}

#[test]
fn what_both_are_told_both_show() -> Result<()> {
    let Some(slurm) = Slurm::start_or_skip("what_both_are_told_both_show")? else { return Ok(()) };
    let lab = Lab::start()?;
    for text in WORDS {
        let [theirs, ours] = both(&lab, &slurm, &[], text)?;
        ensure!(theirs.0 == 0 && ours.0 == 0, "{text}: {theirs:#?} {ours:#?}");
        // The first line says what is done.
        assert_eq!(theirs.1.lines().next(), ours.1.lines().next(), "{text}");
    }
    what_changes_nothing(&lab, &slurm)?;
    let comparison = Comparison::default();
    for (text, [theirs, ours]) in all(&lab, &slurm, TABLES, &["-P"])? {
        assert_eq!((theirs.0, ours.0), (0, 0), "{text}: {theirs:#?} {ours:#?}");
        comparison.compare(text, &theirs.1, &ours.1);
    }
    comparison.every_difference_is_one();
    for options in [&[][..], &["-n"], &["-p"]] {
        for (text, [theirs, ours]) in all(&lab, &slurm, COLUMNS, options)? {
            assert_eq!(theirs, ours, "{options:?} {text}");
        }
    }
    a_dump_goes_there_and_back(&lab, &slurm)?;
    slurms_dump_is_imported(&slurm)
}

fn what_changes_nothing(lab: &Lab, slurm: &Slurm) -> Result<()> {
    let before = lab.revision()?;
    for (text, [theirs, ours]) in all(lab, slurm, NOTHING, &[])? {
        let first = |text: &str| {
            text.lines().next().unwrap_or_default().trim().trim_start_matches("error: ").to_owned()
        };
        assert_eq!(first(&theirs.1), first(&ours.1), "{text}");
        // Slurm knows one code for all that goes wrong.
        assert_eq!((theirs.0, [1, 64].contains(&ours.0)), (1, true), "{text}: {ours:?}");
    }
    assert_eq!(lab.revision()?, before);
    Ok(())
}

/// Our dump is read by our reader, loaded by a real sacctmgr, and comes back the same.
fn a_dump_goes_there_and_back(lab: &Lab, slurm: &Slurm) -> Result<()> {
    let file = lab.file("alpha.cfg");
    let said = lab.done(&["sacctmgr", "dump", "alpha", &format!("file={}", file.display())])?;
    assert_eq!(said.stdout, "");
    let dump = std::fs::read_to_string(&file)?;
    let options = ReadOptions::default().format(Some(Format::Dump));
    let ours = read(&dump, "dump", options)?;
    assert_eq!(ours.problems, []);
    assert_eq!(lab.done(&["sacctmgr", "dump"])?.stdout, dump);
    slurm.load(&dump.replacen("'alpha'", "'beta'", 1))?;
    let back = read(&slurm.dump_of("beta")?, "back", options)?;
    let (ours, mut back) = (held(&ours), held(&back));
    back.remove("user root");
    assert_eq!(lower(&ours), lower(&back));
    Ok(())
}

/// As Slurm keeps texts.
fn lower(held: &std::collections::BTreeMap<String, String>) -> Vec<String> {
    held.iter().map(|(name, value)| format!("{name}: {value}").to_lowercase()).collect()
}

/// What Slurm dumps is taken over by a new controller, in MiB.
fn slurms_dump_is_imported(slurm: &Slurm) -> Result<()> {
    let lab = Lab::start()?;
    let dump = slurm.dump()?;
    let said = lab.spur_reading(&["account", "import", "-"], &dump)?;
    assert_eq!(said.code, 0, "{said:#?}");
    let mut theirs = read(&dump, "dump", ReadOptions::default().format(Some(Format::Dump)))?;
    theirs.users.retain(|name, _| name.as_str() != "root");
    let (mut ours, theirs) = (held(&lab.model()?), held(&theirs));
    // 22.05 dumps no QoS; those that members name are made.
    ours.retain(|name, _| !name.starts_with("qos "));
    assert_eq!(ours, theirs);
    let physics = lab.json(&["account", "show", "physics"])?;
    assert_eq!(physics["grp_tres"], "cpu=128,mem=131072Mi,gres/gpu=8,gres/gpu:mi300x=4");
    let again = lab.spur_reading(&["account", "import", "-"], &dump)?;
    assert_eq!((again.code, again.stdout.as_str()), (0, ""), "{again:#?}");
    assert!(again.stderr.contains("nothing to change"), "{again:#?}");
    Ok(())
}
